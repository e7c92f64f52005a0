"""Files: written whole or not at all, and the formats that other programs read."""
