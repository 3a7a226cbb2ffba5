"""Weight files: one form inside (``state``), outside layouts at the edge, strict loading."""
