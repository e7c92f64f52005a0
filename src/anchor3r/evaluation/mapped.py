"""What `anchor3r evaluate` runs on a sequence: a predictor streamed into a map, and its refinement."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.graph.components import topology_of
from anchor3r.graph.online import OnlineConfig, estimate_trajectory
from anchor3r.graph.refine import refine_poses
from anchor3r.mapping import Mapper, MapperConfig
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import Source
from anchor3r.store import MapWriter, StoreConfig, load_map
from anchor3r.trajectory import Trajectory

NO_LOOPS = "offline-no-loops"
"""Name of the poses that refinement makes of the windows alone."""


@dataclass(frozen=True, kw_only=True)
class MapAndRefine:
    """Maps a source with a predictor of a name; goes on where an interrupted run ended."""

    predictor: str = "auto"
    """As `anchor3r map --predictor`."""
    offline: bool = False
    """Refine the finished map by motion averaging over its windows."""
    window: int | None = None
    """Frames in a window; the predictor's own if None."""
    seed: int = 0
    """Of every random choice."""

    @property
    def name(self) -> str:
        return Path(self.predictor.partition(":")[0]).stem

    @property
    def config(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, source: Source, folder: Path) -> None:
        predictor = load_predictor(self.predictor, window=self.window, seed=self.seed)
        mapper_config = MapperConfig(online=OnlineConfig(seed=self.seed))
        identity = {"source": source.uri, "predictor": predictor.name, "mapper": asdict(mapper_config)}
        with MapWriter.resume(folder, identity, config=StoreConfig(keep_images=False)) as store:
            for _ in Mapper(predictor, store, mapper_config).run(source):
                pass
        if self.offline:
            refine_without_loops(folder)


def refine_without_loops(folder: Path) -> None:
    """Adds the poses that averaging over all windows of a map gives (the paper's Offline w/o LC)."""
    with load_map(folder) as stored:
        graph = stored.graph()
    topology = topology_of(graph.edges)
    refined, _ = refine_poses(graph, estimate_trajectory(graph.edges, topology=topology))
    poses = Trajectory(
        frames=topology.frames,
        rotation=np.asarray(refined.camera_from_world.rotation, np.float64),
        center=np.asarray(refined.camera_from_world.center(), np.float64),
        component=topology.component,
        log_scale=refined.log_scale,
    )
    with MapWriter.open(folder) as store:
        store.write_trajectory(NO_LOOPS, poses)
