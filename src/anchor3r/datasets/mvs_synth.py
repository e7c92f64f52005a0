"""MVS-Synth: drives and walks through the game GTA V, 120 sequences of 100 frames."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, common_stems, rigid
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import exr

UNITS_PER_M = 10.0
"""By the length of cars and the height of people in it."""
MIRROR = np.diag([1.0, -1.0, 1.0])
"""The world's axes are left-handed; cameras have OpenCV's."""


class MvsSynth(DataSet):
    """poses/XXXX.json: f_x, f_y, c_x, c_y and a 4×4 world-to-camera matrix, whose world is mirrored."""

    card = Card(
        name="mvs_synth",
        title="MVS-Synth",
        licence="non-commercial research",
        size="17 GB (540p) to 52 GB (1080p)",
        scenes="120 sequences in a game's city",
        kind="synthetic",
        download="GTAV_540, GTAV_720 or GTAV_1080 of https://phuang17.github.io/DeepMVS/mvs-synth.html",
        layout="GTAV_XXX/XXXX with images, depths and poses",
    )

    def names(self, files: Files) -> list[str]:
        tops = [folder for folder in files.folders() if folder.startswith("GTAV")]
        found = [s for top in tops for s in files.folders(top)] or files.folders()
        return [sequence for sequence in found if files.files(f"{sequence}/poses", ".json")]

    def index(self, files: Files, name: str) -> SequenceTable:
        stems = common_stems(files.files(f"{name}/images"), files.files(f"{name}/poses", ".json"))
        cameras = [cast(dict[str, Any], files.json(f"{name}/poses/{stem}.json")) for stem in stems]
        matrices = np.array([camera["extrinsic"] for camera in cameras], float).reshape(-1, 4, 4)[:, :3]
        matrices[:, :, :3] = matrices[:, :, :3] @ MIRROR
        matrices[:, :, 3] /= UNITS_PER_M
        return SequenceTable(
            name=name,
            images=tuple(f"{name}/images/{stem}.png" for stem in stems),
            depths=tuple(f"{name}/depths/{stem}.exr" for stem in stems),
            camera_from_world=rigid(matrices, f"{name}/poses"),
            cameras=np.array([[c["f_x"], c["f_y"], c["c_x"], c["c_y"]] for c in cameras], float),
        )

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        return exr(files, table.depths[index]) / np.float32(UNITS_PER_M)  # the sky is infinitely far
