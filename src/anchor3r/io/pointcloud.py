"""Point clouds of any size, streamed: through a voxel grid, into PLY and PCD files.

Memory does not grow with the map. The voxel grid keeps a bounded table; when it is full, the table goes to a
temporary file in the order of its keys, and in the end those files are merged range by range. So every voxel
becomes exactly one point, the mean of all that fell into it, whatever the size of the map.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError, printable
from anchor3r.io.files import replacing

_BITS = 21  # of each grid coordinate in a voxel's key
_VOXEL = np.dtype(
    [
        ("key", "<u8"),
        ("count", "<f4"),
        ("offset", "<f4", (3,)),  # summed, from the voxel's corner: sums stay small and exact enough
        ("colour", "<f4", (3,)),  # summed
        ("confidence", "<f4"),  # summed
    ]
)
_VERTEX = np.dtype(
    [(axis, "<f4") for axis in "xyz"]
    + [(channel, "u1") for channel in ("red", "green", "blue")]
    + [("confidence", "<f4")]
)
_VERTEX_WITH_NORMAL = np.dtype(_VERTEX.descr + [(f"n{axis}", "<f4") for axis in "xyz"])
_PCD_POINT = np.dtype([(name, "<f4") for name in ("x", "y", "z", "rgb", "confidence")])
_PLY_TYPES = {"<f4": "float", "|u1": "uchar"}


@dataclass(frozen=True)
class Cloud:
    """A batch of n points."""

    points: NDArray[np.float32]
    """(n, 3) in the world"""
    colours: NDArray[np.uint8]
    """(n, 3) RGB"""
    confidence: NDArray[np.float32]
    """(n,)"""
    normals: NDArray[np.float32] | None = None
    """(n, 3) unit vectors; None where they are not known"""

    def __len__(self) -> int:
        return len(self.points)

    def select(self, which: NDArray[Any]) -> Cloud:
        """The points of a boolean mask or an index array."""
        normals = None if self.normals is None else self.normals[which]
        return Cloud(self.points[which], self.colours[which], self.confidence[which], normals)

    @staticmethod
    def joined(clouds: Sequence[Cloud]) -> Cloud:
        """All points in one batch, with normals if every one of them has its own."""
        none = Cloud(np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8), np.empty(0, np.float32))
        clouds = [none, *(cloud for cloud in clouds if len(cloud))]
        normals = [cloud.normals for cloud in clouds if cloud.normals is not None]
        complete = len(normals) == len(clouds) - 1 > 0
        return Cloud(
            np.concatenate([cloud.points for cloud in clouds]),
            np.concatenate([cloud.colours for cloud in clouds]),
            np.concatenate([cloud.confidence for cloud in clouds]),
            np.concatenate(normals) if complete else None,
        )


def write_ply(path: Path | str, clouds: Iterable[Cloud], *, comment: str = "") -> int:
    """Writes a binary PLY with colours and confidence as its points come; returns their number.

    With normals too, if the first of the points have any.
    """
    clouds = iter(clouds)
    first = next(clouds, Cloud.joined([]))
    dtype = _VERTEX if first.normals is None else _VERTEX_WITH_NORMAL

    def header(count: int) -> str:
        lines = [
            "ply",
            "format binary_little_endian 1.0",
            f"comment {printable(comment)}",
            f"comment {'-' * (20 - len(str(count)))}",
            f"element vertex {count}",
            *(f"property {_PLY_TYPES[dtype[name].str]} {name}" for name in dtype.names or ()),
            "end_header",
        ]
        return "\n".join(lines) + "\n"

    return _write_records(path, chain([first], clouds), header, lambda cloud: _vertices(cloud, dtype))


def write_pcd(path: Path | str, clouds: Iterable[Cloud], *, comment: str = "") -> int:
    """Writes a binary PCD 0.7 as its points come; returns their number.

    The fields are those of PCL's PointXYZRGB, the colour packed as 0x00RRGGBB into the bits of a float, and
    the confidence after them.
    """

    def header(count: int) -> str:
        lines = [
            "# .PCD v0.7 - Point Cloud Data file format",
            f"# {printable(comment)}",
            f"# {'-' * 2 * (20 - len(str(count)))}",
            "VERSION 0.7",
            f"FIELDS {' '.join(_PCD_POINT.names or ())}",
            "SIZE 4 4 4 4 4",
            "TYPE F F F F F",
            "COUNT 1 1 1 1 1",
            f"WIDTH {count}",
            "HEIGHT 1",
            "VIEWPOINT 0 0 0 1 0 0 0",
            f"POINTS {count}",
            "DATA binary",
        ]
        return "\n".join(lines) + "\n"

    return _write_records(path, clouds, header, _pcd_points)


def _write_records(
    path: Path | str,
    clouds: Iterable[Cloud],
    header: Callable[[int], str],
    records: Callable[[Cloud], NDArray[np.void]],
) -> int:
    """A header of constant length, written again once the count is known, and a record a point."""
    count = 0
    with replacing(path) as file:
        file.write(header(count).encode())
        for cloud in clouds:
            file.write(records(cloud).tobytes())
            count += len(cloud)
        insist_on_points(count, path)
        file.seek(0)
        file.write(header(count).encode())
    return count


def insist_on_points(count: int, path: Path | str) -> None:
    """Refuses to write a cloud without points."""
    if not count:
        raise Anchor3RError(
            f"no points to write to {path}; lower the confidence threshold, or map with a predictor "
            "that gives points"
        )


def _vertices(cloud: Cloud, dtype: np.dtype[Any]) -> NDArray[np.void]:
    vertices = np.empty(len(cloud), dtype)
    for k, (axis, channel) in enumerate(zip("xyz", ("red", "green", "blue"), strict=True)):
        vertices[axis], vertices[channel] = cloud.points[:, k], cloud.colours[:, k]
    vertices["confidence"] = cloud.confidence
    if dtype == _VERTEX_WITH_NORMAL and len(cloud):
        assert cloud.normals is not None, "either all points of a file have normals or none"
        for k, axis in enumerate("xyz"):
            vertices[f"n{axis}"] = cloud.normals[:, k]
    return vertices


def _pcd_points(cloud: Cloud) -> NDArray[np.void]:
    points = np.empty(len(cloud), _PCD_POINT)
    for k, axis in enumerate("xyz"):
        points[axis] = cloud.points[:, k]
    red, green, blue = cloud.colours.astype("<u4").T
    points["rgb"] = (red << 16 | green << 8 | blue).view("<f4")
    points["confidence"] = cloud.confidence
    return points


def random_subset(clouds: Iterable[Cloud], max_points: int, *, seed: int = 0) -> Cloud:
    """At most `max_points` of all points, each as likely as any other, in the order in which they came.

    Every point gets a random number and the lowest stay; no more than about twice as many are in memory.
    """
    if max_points < 1:
        raise Anchor3RError(f"a cloud needs room for at least one point, not {max_points}")
    rng = np.random.default_rng(seed)
    kept, keys = [Cloud.joined([])], [np.empty(0)]
    count, limit = 0, np.inf
    for cloud in clouds:
        key = rng.random(len(cloud))
        kept.append(cloud.select(key < limit))
        keys.append(key[key < limit])
        count += len(keys[-1])
        if count > 2 * max_points:
            lowest, limits = _lowest(Cloud.joined(kept), np.concatenate(keys), max_points)
            kept, keys, count, limit = [lowest], [limits], max_points, limits.max()
    return _lowest(Cloud.joined(kept), np.concatenate(keys), max_points)[0]


def _lowest(cloud: Cloud, keys: NDArray[np.float64], count: int) -> tuple[Cloud, NDArray[np.float64]]:
    if len(keys) <= count:
        return cloud, keys
    which = np.sort(np.argpartition(keys, count)[:count])
    return cloud.select(which), keys[which]


def voxel_downsampled(
    clouds: Iterable[Cloud], voxel_size: float, *, max_voxels: int = 2_000_000, scratch: Path | None = None
) -> Iterator[Cloud]:
    """One point a voxel, the mean of what fell into it, in the order of the voxels' keys.

    At most `max_voxels` are in memory (about 150 bytes each at the peak); what is more goes to a temporary
    file in `scratch`.
    """
    if not voxel_size > 0:
        raise Anchor3RError(f"a voxel must have a positive size, not {voxel_size}")
    with tempfile.TemporaryFile(dir=scratch) as file:
        runs: list[NDArray[np.void]] = []
        table, pending, num_pending = np.empty(0, _VOXEL), [], 0
        for cloud in clouds:
            voxels = _merged(_voxels(cloud, voxel_size))
            pending.append(voxels)
            num_pending += len(voxels)
            if num_pending < max_voxels // 4:
                continue
            table, pending, num_pending = _merged(np.concatenate([table, *pending])), [], 0
            if len(table) > max_voxels // 2:
                runs.append(_spilled(table, file))
                table = np.empty(0, _VOXEL)
        runs.append(_merged(np.concatenate([table, *pending])))
        for merged in _merged_ranges(runs, max_voxels):
            yield _mean_points(merged, voxel_size)


def _voxels(cloud: Cloud, voxel_size: float) -> NDArray[np.void]:
    """Every point as a voxel of its own."""
    cell = np.floor(cloud.points.astype(np.float64) / voxel_size)
    half = 1 << (_BITS - 1)
    if len(cell) and np.abs(cell).max() >= half:
        raise Anchor3RError(
            f"voxels of {voxel_size} are too small for points {np.abs(cloud.points).max():.0f} units off the "
            "origin; choose a larger --voxel or a higher --confidence"
        )
    x, y, z = (cell + half).astype(np.uint64).T
    voxels = np.empty(len(cloud), _VOXEL)
    voxels["key"] = (x << np.uint64(2 * _BITS)) | (y << np.uint64(_BITS)) | z
    voxels["count"] = 1
    voxels["offset"] = cloud.points - cell * voxel_size
    voxels["colour"] = cloud.colours
    voxels["confidence"] = cloud.confidence
    return voxels


def _merged(voxels: NDArray[np.void]) -> NDArray[np.void]:
    """Sorted by key, equal keys summed."""
    voxels = voxels[np.argsort(voxels["key"], kind="stable")]
    if not len(voxels):
        return voxels
    starts = np.flatnonzero(np.concatenate([[True], voxels["key"][1:] != voxels["key"][:-1]]))
    out = voxels[starts]
    for name in ("count", "offset", "colour", "confidence"):
        out[name] = np.add.reduceat(voxels[name], starts, axis=0)
    return out


def _mean_points(voxels: NDArray[np.void], voxel_size: float) -> Cloud:
    mask = np.uint64((1 << _BITS) - 1)
    cell = np.stack([(voxels["key"] >> np.uint64(shift)) & mask for shift in (2 * _BITS, _BITS, 0)], -1)
    corner = (cell.astype(np.float64) - (1 << (_BITS - 1))) * voxel_size
    count = voxels["count"][:, None]
    return Cloud(
        (corner + voxels["offset"] / count).astype(np.float32),
        np.round(voxels["colour"] / count).astype(np.uint8),
        voxels["confidence"] / voxels["count"],
    )


def _spilled(table: NDArray[np.void], file: BinaryIO) -> NDArray[np.void]:
    """A table moved from memory to the end of a file."""
    start = file.seek(0, 2)
    file.write(table.tobytes())
    file.flush()
    return np.memmap(file, _VOXEL, "r", offset=start, shape=table.shape)


def _merged_ranges(runs: list[NDArray[np.void]], max_voxels: int) -> Iterator[NDArray[np.void]]:
    """Merges sorted runs range by range of the keys, at most about `max_voxels` at a time."""
    stride = max(1, max_voxels // (2 * len(runs)))
    samples = np.sort(np.concatenate([run["key"][::stride] for run in runs]))
    splits = samples[len(runs) :: len(runs)]
    begins = [0] * len(runs)
    for split in [*splits.tolist(), None]:
        ends = [
            len(run) if split is None else bisect_left(run, split, begin, key=lambda voxel: int(voxel["key"]))
            for run, begin in zip(runs, begins, strict=True)
        ]
        parts = [run[begin:end] for run, begin, end in zip(runs, begins, ends, strict=True)]
        begins = ends
        if any(map(len, parts)):
            yield _merged(np.concatenate(parts))
