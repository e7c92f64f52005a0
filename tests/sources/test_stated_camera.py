"""The camera as the user states it."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.sources import Frame, StatedCamera, open_source
from anchor3r.sources.stated_camera import parse_numbers

CAMERA = Pinhole(150.0, 150.0, 79.5, 59.5, 160, 120)
INTRINSICS = (150.0, 150.0, 79.5, 59.5)


def _frame(image: np.ndarray, intrinsics: Pinhole | None = None) -> Frame:
    return Frame(index=0, timestamp_s=0.0, image=image, intrinsics=intrinsics)


def _dots(at: np.ndarray) -> np.ndarray:
    """An image with a soft dot at each pixel (n, 2)."""
    v, u = np.mgrid[:120, :160]
    grey = sum(np.exp(-((u - x) ** 2 + (v - y) ** 2) / 8) for x, y in at)
    return np.repeat((255 * np.clip(grey, 0, 1)).astype(np.uint8)[..., None], 3, axis=2)


def _dot_near(image: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Centre of brightness around a pixel."""
    u, v = np.round(at).astype(int)
    patch = image[v - 8 : v + 9, u - 8 : u + 9, 0].astype(float)
    rows, columns = np.mgrid[-8:9, -8:9]
    return np.array([u + (columns * patch).sum() / patch.sum(), v + (rows * patch).sum() / patch.sum()])


def test_what_is_stated_overrules_the_source() -> None:
    image = np.zeros((120, 160, 3), np.uint8)
    assert StatedCamera(intrinsics=INTRINSICS).applied(_frame(image)).intrinsics == CAMERA
    wrong = Pinhole.from_fov(20, 160, 120)
    assert StatedCamera(fov_deg=60).applied(_frame(image, wrong)).intrinsics == Pinhole.from_fov(60, 160, 120)


@pytest.mark.parametrize(
    "lens",
    [
        {"distortion": (-0.3,)},
        {"distortion": (-0.25, 0.05, 0.004, -0.003)},
        {"fisheye": (0.15, -0.02, 0.0, 0.0)},
    ],
)
def test_lenses_are_straightened(lens: dict) -> None:
    ideal = np.array([[40.0, 30.0], [115.0, 35.0], [79.5, 59.5], [110.0, 90.0]])
    rays = np.column_stack([(ideal - INTRINSICS[2:]) / INTRINSICS[:2], np.ones(4)])
    if "fisheye" in lens:
        flat = rays[None, :, :2].copy()
        bent = cv2.fisheye.distortPoints(flat, CAMERA.matrix(), np.array(lens["fisheye"]))[0]
    else:
        coefficients = np.zeros(5)
        coefficients[: len(lens["distortion"])] = lens["distortion"]
        bent = cv2.projectPoints(rays, np.zeros(3), np.zeros(3), CAMERA.matrix(), coefficients)[0][:, 0]
    assert np.abs(bent - ideal).max() > 0.5
    straight = StatedCamera(intrinsics=INTRINSICS, **lens).applied(_frame(_dots(bent)))
    for at in ideal:
        np.testing.assert_allclose(_dot_near(straight.image, at), at, atol=0.3)
    assert straight.intrinsics == CAMERA


def test_sources_hand_out_the_stated_camera(tmp_path: Path) -> None:
    for k in range(2):
        Image.fromarray(np.full((120, 160, 3), 40 * k, np.uint8)).save(tmp_path / f"{k}.png")
    with open_source(str(tmp_path), camera=StatedCamera(intrinsics=INTRINSICS)) as source:
        assert [frame.intrinsics for frame in source] == [CAMERA, CAMERA]
        assert source.read(1).intrinsics == CAMERA


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"intrinsics": (150.0, 150.0)}, "four numbers"),
        ({"intrinsics": (-1.0, 150.0, 80.0, 60.0)}, "positive"),
        ({"intrinsics": INTRINSICS, "fov_deg": 60.0}, "choose one"),
        ({"fov_deg": 190.0}, "between 1 and 170"),
        ({"distortion": (0.1, 0.1, 0.1)}, "k1"),
        ({"fisheye": (0.1,)}, "four numbers"),
        ({"distortion": (0.1,), "fisheye": (0.1, 0.0, 0.0, 0.0)}, "choose one"),
    ],
)
def test_nonsense_is_refused(stated: dict, message: str) -> None:
    with pytest.raises(Anchor3RError, match=message):
        StatedCamera(**stated)


def test_a_lens_without_a_focal_length_is_refused() -> None:
    with pytest.raises(Anchor3RError, match="fov"):
        StatedCamera(distortion=(0.1,)).applied(_frame(np.zeros((120, 160, 3), np.uint8)))


def test_numbers_are_read() -> None:
    assert parse_numbers("--intrinsics", None) == ()
    assert parse_numbers("--intrinsics", "1,2.5") == (1.0, 2.5)
    with pytest.raises(Anchor3RError, match="fisheye a,2"):
        parse_numbers("--fisheye", "a,2")
