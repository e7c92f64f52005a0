"""CO3Dv2: turntable videos of objects of 51 categories, reconstructed with COLMAP.

Cameras are PyTorch3D's: x left, y up, row vectors, and lengths in halves of the picture's shorter side.
"""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, rigid
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import mask, png16
from anchor3r.io.inputs import decoding
from anchor3r.limits import LIMITS

MIN_QUALITY = 0.5
"""Sequences whose viewpoints COLMAP found with a lower score are left out, as all who train on them do."""
OPENCV_FROM_PYTORCH3D = np.diag([-1.0, -1.0, 1.0])


class Co3d(DataSet):
    """Depth is a half float in the bits of a 16-bit image, known where depth_masks says so."""

    card = Card(
        name="co3d",
        title="CO3Dv2",
        licence="CC BY-NC 4.0",
        size="5.5 TB",
        scenes="37,000 videos of objects",
        kind="real",
        download="the categories with co3d/download_dataset.py of https://github.com/facebookresearch/co3d",
        layout="CATEGORY with frame_annotations.jgz, sequence_annotations.jgz and folders of sequences",
        metric=False,
    )

    def names(self, files: Files) -> list[str]:
        found = []
        for category in files.folders():
            if files.exists(f"{category}/frame_annotations.jgz"):
                for entry in _annotations(files, f"{category}/sequence_annotations.jgz"):
                    if (entry.get("viewpoint_quality_score") or 0) > MIN_QUALITY:
                        found.append(f"{category}/{entry['sequence_name']}")
        return found

    def index(self, files: Files, name: str) -> SequenceTable:
        category, sequence = name.split("/")
        frames = _frames(files, category).get(sequence, [])
        matrices, cameras = _cameras(frames)
        depths = [frame["depth"] or {} for frame in frames]
        return SequenceTable(
            name=name,
            images=tuple(frame["image"]["path"] for frame in frames),
            depths=tuple(f"{d.get('path', '')}|{d.get('mask_path', '')}" for d in depths),
            camera_from_world=rigid(matrices, name),
            cameras=cameras,
            lens=np.array([[d.get("scale_adjustment", 1.0)] for d in depths]),
        )

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        path, mask_path = table.depths[index].split("|")
        depth = png16(files, path).view(np.float16).astype(np.float32) * np.float32(table.lens[index, 0])
        return np.where(mask(files, mask_path), depth, 0) if mask_path else depth


def _cameras(frames: list[dict[str, Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """camera_from_world (n, 3, 4) and fx, fy, cx, cy (n, 4)."""
    views = [frame["viewpoint"] for frame in frames]
    # Row vectors: x_camera = x_world R + T.
    rotation = OPENCV_FROM_PYTORCH3D @ np.array([view["R"] for view in views], float).swapaxes(1, 2)
    translation = np.array([view["T"] for view in views], float) @ OPENCV_FROM_PYTORCH3D
    half = np.array([frame["image"]["size"][::-1] for frame in frames], float) / 2
    isotropic = np.array([view.get("intrinsics_format") == "ndc_isotropic" for view in views])
    unit = np.where(isotropic[:, None], half.min(1, keepdims=True), half)
    focal = unit * np.array([view["focal_length"] for view in views], float)
    # The picture's middle is between pixels, and both axes point the other way.
    centre = half - unit * np.array([view["principal_point"] for view in views], float) - 0.5
    return np.concatenate([rotation, translation[..., None]], -1), np.concatenate([focal, centre], -1)


def _annotations(files: Files, name: str) -> list[dict[str, Any]]:
    with decoding(str(files.root / name), "get it again"), files.open(name) as packed:
        with gzip.open(packed) as file:
            text = file.read(LIMITS.array_bytes + 1)
        if len(text) > LIMITS.array_bytes:
            raise ValueError(f"unpacked it has more than {LIMITS.array_bytes:,} bytes")
        return json.loads(text)


@lru_cache(maxsize=1)
def _frames(files: Files, category: str) -> dict[str, list[dict[str, Any]]]:
    """The frames of each sequence in the order of time. A category is read once: names come by category."""
    found: dict[str, list[dict[str, Any]]] = {}
    for frame in _annotations(files, f"{category}/frame_annotations.jgz"):
        found.setdefault(frame["sequence_name"], []).append(frame)
    return {name: sorted(frames, key=lambda frame: frame["frame_number"]) for name, frames in found.items()}
