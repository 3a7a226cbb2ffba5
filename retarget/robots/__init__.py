"""What a robot hand is: its robot.yaml, limits, kinematics and model files."""
