"""Making ``acehand_core/hand/assets``: the procedural hand's mesh and skin."""
