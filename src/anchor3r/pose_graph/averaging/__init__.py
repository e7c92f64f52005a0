"""Rotations, positions and scales, each averaged by itself over the whole graph."""
