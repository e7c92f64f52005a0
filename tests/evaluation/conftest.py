"""Data sets in miniature."""

from collections.abc import Callable
from pathlib import Path

import pytest
from miniatures import drive, write_kitti


@pytest.fixture
def kitti_miniature(tmp_path: Path) -> Callable[..., Path]:
    """Makes a KITTI root with the given sequences of `num` frames."""

    def make(*names: str, num: int = 25, camera: int = 2) -> Path:
        for k, name in enumerate(names):
            write_kitti(tmp_path / "kitti", name, drive(num, seed=k), camera)
        return tmp_path / "kitti"

    return make
