"""Pictures of a map and a page about it."""
