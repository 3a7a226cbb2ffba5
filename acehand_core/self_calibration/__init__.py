"""The focal length of a video from its own pictures: moving camera and straight lines."""
