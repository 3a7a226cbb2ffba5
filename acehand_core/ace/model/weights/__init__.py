"""Weight files: one internal form (``state``), external layouts around it, strict loading."""
