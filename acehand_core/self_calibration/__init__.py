"""The focal length of a video from its own pictures: moving camera and straight lines."""

#: Another one where an estimate of the same pictures changes; kept ones are told apart by it.
VERSION = 1
