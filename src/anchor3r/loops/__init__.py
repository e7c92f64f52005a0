"""Places that were seen before: described, retrieved, and measured again as windows."""
