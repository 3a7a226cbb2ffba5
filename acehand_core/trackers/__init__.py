"""What turns a Recording into a HandMotion."""
