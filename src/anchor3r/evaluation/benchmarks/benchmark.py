"""What a benchmark is: where its sequences lie, which frames and poses count, and how they are scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.association import stamps_of
from anchor3r.evaluation.metrics import Alignment
from anchor3r.geometry import SE3, Pinhole
from anchor3r.io.trajectories import read_tum
from anchor3r.sources import Frame, Source
from anchor3r.sources.images import ImageSequence, image_paths, read_depth
from anchor3r.trajectory import nearest_in_time

Rectify = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""Takes the lens distortion out of an image (H, W, 3)."""


@dataclass(frozen=True, kw_only=True)
class CloudProtocol:
    """How a reconstructed cloud is compared: after the trajectory's alignment, without ICP."""

    f1_thresholds_m: tuple[float, ...] = (0.25, 0.05)
    """Points nearer than each of these count as right."""
    num_points: int = 100_000
    """Random points a side."""
    seed: int = 0
    """Of their choice."""


@dataclass(frozen=True, kw_only=True)
class ScoringProtocol:
    """Everything that decides a number, stamped into results."""

    benchmark: str
    """Name of the benchmark on the command line."""
    camera: str
    """Whose images are mapped."""
    frames: str
    """Which of them."""
    ground_truth: str
    """Where true poses come from and which frame they are of."""
    sequences: tuple[str, ...] = ()
    """What is run unless told otherwise; empty for every sequence that is there."""
    alignment: Alignment = Alignment.SIM3
    """What is moved away before ATE, RRE and RTE."""
    cloud: CloudProtocol | None = None
    """None where clouds are not compared."""
    metrics: tuple[str, ...] = ("ate_rmse_m", "rre_rmse_deg", "rte_rmse_m")
    """What its table shows; results.json has all."""


class Benchmark(ABC):
    """One data set in its official layout."""

    protocol: ClassVar[ScoringProtocol]

    @abstractmethod
    def open(self, root: Path, name: str, wanted: slice) -> Source:
        """A sequence, whose frames carry their true poses, cut to the wanted frames."""

    def sequence_names(self, root: Path) -> list[str]:
        """What is run unless told otherwise."""
        return list(self.protocol.sequences)

    def check(self, root: Path, name: str) -> None:
        """Raises the error that opening a sequence would raise."""
        self.open(root, name, slice(None)).close()

    def settings(self, name: str) -> dict[str, Any]:
        """What decides a sequence besides the protocol, as JSON."""
        return {}

    def deviations(self, root: Path, name: str) -> list[str]:
        """What about the data on the disk is not as the protocol says."""
        return []


@dataclass(frozen=True, kw_only=True)
class DepthFiles:
    """True depth as 16-bit images."""

    paths: Sequence[Path]
    """One for each image."""
    units_per_m: float
    no_depth: int = 0
    """The value that means unknown, besides 0."""


class PosedImages(ImageSequence):
    """Image files with what a data set knows about each, in columns of the same length."""

    def __init__(
        self,
        uri: str,
        wanted: slice,
        paths: Sequence[str | Path],
        *,
        timestamps_s: NDArray[np.float64],
        camera_from_world: Sequence[SE3 | None],
        cameras: Sequence[Pinhole] | None = None,
        depth: DepthFiles | None = None,
        rectify: Rectify | None = None,
    ) -> None:
        super().__init__(uri, wanted, paths)
        assert len(paths) == len(timestamps_s) == len(camera_from_world)
        self._timestamps_s = timestamps_s
        self._poses = camera_from_world
        self._cameras = cameras
        self._depth = depth
        self._rectify = rectify

    def _load(self, index: int) -> Frame:
        frame = super()._load(index)
        if self._cameras is not None:
            frame = replace(frame, intrinsics=self._cameras[index])
        return frame if self._rectify is None else replace(frame, image=self._rectify(frame.image))

    def _timestamp_s(self, index: int) -> float:
        return float(self._timestamps_s[index])

    def _depth_m(self, index: int, width: int, height: int) -> NDArray[np.float32] | None:
        if self._depth is None:
            return None
        return read_depth(
            self._depth.paths[index], width, height, self._depth.units_per_m, self._depth.no_depth
        )

    def _camera_from_world(self, index: int) -> SE3 | None:
        return self._poses[index]


def poses_at(
    stamps_s: NDArray[np.float64], path: Path, *, camera_from_body: SE3, max_difference_s: float
) -> list[SE3 | None]:
    """camera_from_world at times (n,), from a TUM file of world_from_body poses; None where none is near."""
    truth = read_tum(path)
    truth_s = stamps_of(truth, path)
    query, nearest = nearest_in_time(stamps_s, truth_s, max_difference_s)
    if not len(query):
        spans = [f"{stamps.min():.3f} to {stamps.max():.3f} s" for stamps in (stamps_s, truth_s)]
        raise Anchor3RError(
            f"no frame ({spans[0]}) lies within {max_difference_s} s of a pose of {path} ({spans[1]}); "
            "the two are of different recordings or clocks"
        )
    camera_from_world = camera_from_body @ truth.camera_from_world[nearest]
    poses: list[SE3 | None] = [None] * len(stamps_s)
    for k, index in enumerate(query):
        poses[index] = camera_from_world[k]
    return poses


def folders_with(root: Path, inside: str) -> list[str]:
    """Names of the folders in `root` that hold a given file or folder, sorted; an error if there is none."""
    found = sorted(path.name for path in root.iterdir() if (path / inside).exists()) if root.is_dir() else []
    if not found:
        raise Anchor3RError(f"no sequence in {root}: no folder there holds {inside}; check the path")
    return found


def images_in(folder: Path, pattern: str = "*") -> list[str]:
    """The images of a folder in the order of their numbers; an error if it has none."""
    found = image_paths([str(path) for path in folder.glob(pattern)])
    if not found:
        raise Anchor3RError(f"no images {folder / pattern}; check the path and that all was unpacked")
    return found
