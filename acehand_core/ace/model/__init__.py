"""The model of the paper and running it over recordings."""
