"""What a wrong focal length makes of a path."""

import numpy as np
import pytest
from numpy.typing import NDArray

from anchor3r.geometry import so3_exp, umeyama
from anchor3r.trajectory import Trajectory, bend_by_focal_length

Array = NDArray[np.float64]


def drive(heading_rad: Array, step: float = 1.0) -> Trajectory:
    """On a plane, each step along the camera's axis."""
    rotation = so3_exp(np.outer(-heading_rad, [0.0, 1.0, 0.0]))
    steps = step * rotation[:-1, 2]
    center = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    return Trajectory(frames=np.arange(len(heading_rad)), rotation=rotation, center=center)


@pytest.mark.parametrize("relative", [-0.1, 0.03, 0.2])
def test_a_drive_turns_less_by_a_longer_focal_length(relative: float) -> None:
    heading = 2.0 * np.sin(np.linspace(0, 4, 80))
    true, bent = drive(heading), drive(heading / (1 + relative))
    error = umeyama(true.center, bent.center).inverse().apply(bent.center) - true.center
    expected = np.sqrt((error**2).sum(1).mean()) / true.path_length()
    assert expected > 1e-3
    assert bend_by_focal_length(true, relative) == pytest.approx(expected, rel=1e-6)


def test_a_focal_length_that_is_right_and_a_straight_drive_bend_nothing() -> None:
    assert bend_by_focal_length(drive(np.sin(np.linspace(0, 4, 50))), 0.0) == pytest.approx(0, abs=1e-9)
    assert bend_by_focal_length(drive(np.zeros(50)), 0.1) == pytest.approx(0, abs=1e-9)


def test_a_camera_that_only_turns_has_no_path() -> None:
    assert bend_by_focal_length(drive(np.sin(np.linspace(0, 4, 50)), step=0.0), 0.1) is None
