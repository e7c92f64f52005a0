"""Streaming 3D reconstruction with transient anchors.

Names are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchor3r.errors import Anchor3RError
    from anchor3r.export.exporting import ExportSettings, export_map
    from anchor3r.pipeline.densify import densify_map
    from anchor3r.pipeline.fusing import fuse_map
    from anchor3r.pipeline.mapper import Mapper
    from anchor3r.pipeline.mapping import MappingRun, map_source
    from anchor3r.pipeline.merging import merge_maps
    from anchor3r.pipeline.photos import map_photos
    from anchor3r.pipeline.refine import refine_map
    from anchor3r.pipeline.settings import DensifySettings, FuseSettings, MapSettings, RefineSettings
    from anchor3r.pose_graph.edges import MotionGraph
    from anchor3r.predictors.loading import load_predictor
    from anchor3r.report.map_outputs import RenderSettings, render_map, report_map
    from anchor3r.sources import Frame, StatedCamera, open_source
    from anchor3r.store import MapWriter, load_map

_HOMES = {
    "Anchor3RError": "errors",
    "DensifySettings": "pipeline.settings",
    "ExportSettings": "export.exporting",
    "Frame": "sources",
    "FuseSettings": "pipeline.settings",
    "MapSettings": "pipeline.settings",
    "MapWriter": "store",
    "Mapper": "pipeline.mapper",
    "MappingRun": "pipeline.mapping",
    "MotionGraph": "pose_graph.edges",
    "RefineSettings": "pipeline.settings",
    "RenderSettings": "report.map_outputs",
    "StatedCamera": "sources",
    "densify_map": "pipeline.densify",
    "fuse_map": "pipeline.fusing",
    "export_map": "export.exporting",
    "load_map": "store",
    "load_predictor": "predictors.loading",
    "map_photos": "pipeline.photos",
    "map_source": "pipeline.mapping",
    "merge_maps": "pipeline.merging",
    "open_source": "sources",
    "refine_map": "pipeline.refine",
    "render_map": "report.map_outputs",
    "report_map": "report.map_outputs",
}
__all__ = [
    "Anchor3RError",
    "DensifySettings",
    "ExportSettings",
    "Frame",
    "FuseSettings",
    "MapSettings",
    "MapWriter",
    "Mapper",
    "MappingRun",
    "MotionGraph",
    "RefineSettings",
    "RenderSettings",
    "StatedCamera",
    "__version__",
    "densify_map",
    "export_map",
    "fuse_map",
    "load_map",
    "load_predictor",
    "map_photos",
    "map_source",
    "merge_maps",
    "open_source",
    "refine_map",
    "render_map",
    "report_map",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("anchor3r")
    if name not in _HOMES:
        raise AttributeError(f"module 'anchor3r' has no attribute {name!r}")
    return getattr(import_module(f"anchor3r.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
