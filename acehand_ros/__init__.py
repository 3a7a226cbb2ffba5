"""ROS 2 nodes: thin wrappers of acehand_core. Nothing outside this package imports rclpy."""
