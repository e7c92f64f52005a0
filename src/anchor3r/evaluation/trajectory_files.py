"""A trajectory from whatever holds one: a TUM, KITTI or EuRoC file, or a map."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.association import largest_component
from anchor3r.io.tables import read_fields
from anchor3r.io.trajectories import read_euroc, read_kitti, read_tum
from anchor3r.store import ONLINE, load_map
from anchor3r.trajectory import Trajectory


class TrajectoryFormat(StrEnum):
    """What a trajectory file is."""

    AUTO = "auto"
    """Told from its first line; a folder is a map."""
    TUM = "tum"
    KITTI = "kitti"
    EUROC = "euroc"


_READERS: dict[TrajectoryFormat, Callable[[Path], Trajectory]] = {
    TrajectoryFormat.TUM: read_tum,
    TrajectoryFormat.KITTI: read_kitti,
    TrajectoryFormat.EUROC: read_euroc,
}


def read_trajectory(
    path: Path, kind: TrajectoryFormat = TrajectoryFormat.AUTO, *, variant: str = ONLINE
) -> Trajectory:
    """Reads a file, or of a map the largest component of the poses called `variant`."""
    if path.is_dir():
        with load_map(path) as stored:
            return largest_component(stored.trajectory(variant))
    if kind is TrajectoryFormat.AUTO:
        kind = _detected(path)
    return _READERS[kind](path)


def _detected(path: Path) -> TrajectoryFormat:
    number, fields = next(read_fields(path), (0, []))
    if "," in " ".join(fields):
        return TrajectoryFormat.EUROC
    by_columns = {8: TrajectoryFormat.TUM, 12: TrajectoryFormat.KITTI}
    if len(fields) not in by_columns:
        found = f"line {number} has {len(fields)} columns" if fields else "it is empty"
        raise Anchor3RError(
            f"{path} is no trajectory that is known: {found}, but TUM has 8, KITTI 12, and EuRoC commas"
        )
    return by_columns[len(fields)]
