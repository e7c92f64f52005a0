"""The map on disk: append-only, crash-safe, readable while it grows."""

from anchor3r.predictors.confidence import LIKELY
from anchor3r.store.keyframe_depths import Densification
from anchor3r.store.pointmaps import PointMap
from anchor3r.store.reader import NO_SHARED_VIEW, PHOTOGRAPHS, Counts, FrameTable, Map, Runtime, load_map
from anchor3r.store.rows import (
    AT_END,
    OFFLINE,
    ONLINE,
    Loop,
    LoopClosing,
    LoopState,
    Refinement,
    best_poses,
)
from anchor3r.store.writer import MapWriter, StoreConfig

__all__ = [
    "AT_END",
    "LIKELY",
    "NO_SHARED_VIEW",
    "OFFLINE",
    "ONLINE",
    "PHOTOGRAPHS",
    "Counts",
    "Densification",
    "FrameTable",
    "Loop",
    "LoopClosing",
    "LoopState",
    "Map",
    "MapWriter",
    "PointMap",
    "Refinement",
    "Runtime",
    "StoreConfig",
    "best_poses",
    "load_map",
]
