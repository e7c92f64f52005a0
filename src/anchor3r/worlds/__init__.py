"""Procedural scenes with exact ground truth: streets, rooms and open ground."""

from anchor3r.worlds.kitti import write_kitti
from anchor3r.worlds.render.renderer import Rendered, Sensor, render
from anchor3r.worlds.world import MOTIONS, World, WorldConfig, make_world, sample_config

__all__ = [
    "MOTIONS",
    "Rendered",
    "Sensor",
    "World",
    "WorldConfig",
    "make_world",
    "render",
    "sample_config",
    "write_kitti",
]
