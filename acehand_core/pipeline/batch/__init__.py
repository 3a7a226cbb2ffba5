"""Many recordings into one dataset: many workers, and nothing lost when any of them dies."""
