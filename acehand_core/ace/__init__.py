"""The system of the paper ACE-Ego-Hand: model, tracker, labelled clips, training, evaluation.

Nothing outside this package imports it: trackers and commands are found by name.
"""
