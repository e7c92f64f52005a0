"""The motion graph: relative poses in, consistent global poses out."""
