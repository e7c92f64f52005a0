"""What `anchor3r evaluate` runs on a sequence: a predictor streamed into a map, and its refinement."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anchor3r.pipeline.mapping import MappingRun
from anchor3r.pipeline.refine import refine_map
from anchor3r.pipeline.settings import MapSettings
from anchor3r.predictors.loading import load_predictor, weights_file
from anchor3r.sources import Source


@dataclass(frozen=True, kw_only=True)
class MapAndRefine:
    """Maps a source with a predictor of a name; goes on where an interrupted run ended."""

    predictor: str = "auto"
    """As `anchor3r map --predictor`."""
    offline: bool = False
    """Refine the finished map: loop closure and motion averaging."""
    window: int | None = None
    """Frames in a window; the predictor's own if None."""
    seed: int = 0
    """Of every random choice."""

    @property
    def name(self) -> str:
        return Path(self.predictor.partition(":")[0]).stem

    @property
    def config(self) -> dict[str, Any]:
        weights = weights_file(self.predictor)
        if weights is None:
            return asdict(self)
        from anchor3r.model.checkpoints import file_digest

        return asdict(self) | {"weights": file_digest(weights)}

    def __call__(self, source: Source, folder: Path) -> None:
        predictor = load_predictor(self.predictor, window=self.window, seed=self.seed)
        settings = MapSettings(keep_images=self.offline, seed=self.seed)
        # A map of fewer or more frames than are to be scored is another one.
        identity = {"stop": source.wanted.stop}
        with MappingRun(source, predictor, folder, settings, resume=True, identity=identity) as run:
            for _ in run:
                pass
        if self.offline:
            refine_map(folder, predictor=lambda: predictor, read_frame=source.read)
