"""Recordings of robots: ROS 1 bags, ROS 2 bags and MCAP files, as sources of frames."""
