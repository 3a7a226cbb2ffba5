"""Weight files: the released layouts, our own, strict loading and exact accounting."""
