"""The main job: recordings in, one dataset of robot demonstrations out."""
