"""The picture from above: points where they are, roofs left out, any number of points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchor3r.outputs import picture
from anchor3r.outputs.pointcloud import Cloud

PATHS = {picture.TRUTH: np.array([[0.0, 0, 0], [10, 0, 10]]), "online": np.array([[0.0, 0, 1], [10, 0, 9]])}


def some_cloud(colour: tuple[int, int, int], height: float, size: int = 4000) -> Cloud:
    points = np.random.default_rng(0).uniform(0, 10, (size, 3)).astype(np.float32)
    points[:, 1] = height
    return Cloud(points, np.tile(np.array(colour, np.uint8), (size, 1)), np.ones(size, np.float32))


def share_of(path: Path, channel: int) -> float:
    """Part of the picture in which one colour stands out."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    others = np.delete(pixels, channel, axis=-1).max(-1)
    return float(np.mean(pixels[..., channel] > others + 40))


def test_the_ground_is_drawn_and_the_roof_is_not(tmp_path: Path) -> None:
    green_ground, blue_roof = some_cloud((0, 255, 0), 1.5), some_cloud((0, 0, 255), -3)
    picture.write_topdown(tmp_path / "p.png", [green_ground, blue_roof], PATHS, title="t")
    assert share_of(tmp_path / "p.png", 1) > 0.001
    assert share_of(tmp_path / "p.png", 2) == 0


def test_a_cloud_beyond_the_budget_is_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "POINT_BUDGET", 1000)
    clouds = [some_cloud((k, 0, 0), 1.0, 400) for k in range(40)]
    points, colours = picture._thinned(clouds, 1, 0.0)
    assert 250 < len(points) <= 1000
    counts = np.bincount(colours[:, 0].astype(int), minlength=40)
    assert counts.min() > 0
    assert counts.max() <= 2 * counts.min()


def test_a_map_without_points_still_has_its_path(tmp_path: Path) -> None:
    picture.write_topdown(tmp_path / "p.png", [], PATHS, title="t")
    assert Image.open(tmp_path / "p.png").size[0] > 500
