"""Point clouds for surveying programs: LAS, and LAZ where it is compressed.

LAS has z upwards, and coordinates that are integers in a grid fixed in its header. So points are turned, and
wait in a temporary file until their extent is known.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.io.extras import export_library
from anchor3r.io.files import replacing
from anchor3r.io.pointcloud import Cloud, insist_on_points

LAS_FROM_MAP = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
"""The map is in the axes of its first camera (y down): its forward becomes y, its up becomes z."""
_POINT = np.dtype([("xyz", "<f4", (3,)), ("rgb", "u1", (3,)), ("confidence", "<f4")])
_GRID_STEPS = 2**30  # across the largest extent: finer than single precision, within a signed integer
_BATCH = 1_000_000
_COLOUR_SCALE = 257  # 255 becomes 65535
_FORMAT_WITH_COLOUR = 2


def write_las(path: Path | str, clouds: Iterable[Cloud], *, compressed: bool = False) -> int:
    """Writes LAS 1.2 (or LAZ) with colours, confidence an extra dimension; returns the number of points."""
    laspy = export_library("laspy")
    if compressed:
        export_library("lazrs")
    with replacing(path) as file, tempfile.TemporaryFile(dir=Path(path).parent) as waiting:
        count, low, high = _wait(clouds, waiting)
        insist_on_points(count, path)
        header = laspy.LasHeader(point_format=_FORMAT_WITH_COLOUR, version="1.2")
        header.add_extra_dim(laspy.ExtraBytesParams(name="confidence", type=np.float32))
        header.offsets = (low + high) / 2
        header.scales = np.full(3, max(float((high - low).max()), 1e-6) / _GRID_STEPS)
        header.generating_software = "anchor3r"
        with laspy.open(file, mode="w", header=header, do_compress=compressed, closefd=False) as las:
            for batch in _batches(waiting):
                points = laspy.ScaleAwarePointRecord.zeros(len(batch), header=header)
                points.x, points.y, points.z = batch["xyz"].astype(np.float64).T
                points.red, points.green, points.blue = batch["rgb"].astype(np.uint16).T * _COLOUR_SCALE
                points.confidence = batch["confidence"]
                las.write_points(points)
    return count


def _wait(clouds: Iterable[Cloud], waiting: BinaryIO) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """Puts all points, turned, into the file; returns their number and extent."""
    count, low, high = 0, np.full(3, np.inf), np.full(3, -np.inf)
    for cloud in clouds:
        batch = np.empty(len(cloud), _POINT)
        batch["xyz"] = cloud.points @ LAS_FROM_MAP.T
        batch["rgb"], batch["confidence"] = cloud.colours, cloud.confidence
        waiting.write(batch.tobytes())
        count += len(batch)
        low = np.minimum(low, batch["xyz"].min(0, initial=np.inf))
        high = np.maximum(high, batch["xyz"].max(0, initial=-np.inf))
    return count, low, high


def _batches(waiting: BinaryIO) -> Iterator[NDArray[np.void]]:
    waiting.seek(0)
    while data := waiting.read(_BATCH * _POINT.itemsize):
        yield np.frombuffer(data, _POINT)
