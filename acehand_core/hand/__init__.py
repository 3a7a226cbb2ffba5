"""The human hand: names, models, kinematics, and fitting them to evidence."""
