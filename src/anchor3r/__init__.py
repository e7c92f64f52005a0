"""Streaming 3D reconstruction with transient anchors.

Names are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchor3r.errors import Anchor3RError
    from anchor3r.pipeline.mapper import Mapper
    from anchor3r.pose_graph.edges import MotionGraph
    from anchor3r.predictors.loading import load_predictor
    from anchor3r.sources import open_source
    from anchor3r.store import MapWriter, load_map

__all__ = [
    "Anchor3RError",
    "MapWriter",
    "Mapper",
    "MotionGraph",
    "load_map",
    "load_predictor",
    "open_source",
]
_HOMES = {
    "Anchor3RError": "errors",
    "MapWriter": "store",
    "Mapper": "pipeline.mapper",
    "MotionGraph": "pose_graph.edges",
    "load_map": "store",
    "load_predictor": "predictors.loading",
    "open_source": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anchor3r' has no attribute {name!r}")
    return getattr(import_module(f"anchor3r.{_HOMES[name]}"), name)
