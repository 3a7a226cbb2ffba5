"""rosbag2 recordings without ROS: MCAP and sqlite3, as a ``Recording`` or message by message."""
