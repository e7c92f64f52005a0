"""The map in a browser: live while it grows, and as a page to share. Nothing else here knows viser."""
