"""Parameter and model files, one folder per robot hand; read by ``retarget.robots.robot``."""
