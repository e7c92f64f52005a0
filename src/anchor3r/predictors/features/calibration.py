"""Self-calibration over a sequence: each window says a little about the camera, and windows add up.

A rectification that is slightly off bends every window the same way, and the bend shows as a steady drift of
scale. One window cannot tell, hundreds can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchor3r.geometry import Array
from anchor3r.predictors.features.projection import CALIBRATION_SIZE, calibration_vector

_HELD_SIGMA = 1e-9
"""Stands for a spread of 0: information must stay finite."""
_RIDGE = 1e-9
"""Of the mean information of a parameter: makes the directions solvable that nothing is known about."""


@dataclass
class Calibration:
    """What is known of (log f, cx, cy, k1, k2), kept as information so that windows add up."""

    information: Array
    """(5, 5)"""
    vector: Array
    """(5,) information times mean"""

    @staticmethod
    def known(camera: Array, sigma: Array) -> Calibration:
        """Before anything is seen; sigma (5,) is the spread of each parameter, 0 holds it."""
        information = np.diag(np.maximum(sigma, _HELD_SIGMA) ** -2.0)
        return Calibration(information, information @ calibration_vector(camera))

    @property
    def mean(self) -> Array:
        """(5,)"""
        return np.linalg.solve(self.information, self.vector)

    @property
    def sigma(self) -> Array:
        """(5,) marginal standard deviations"""
        return np.sqrt(np.diag(np.linalg.inv(self.information)))

    def add(self, camera: Array, window_information: Array, new_part: float) -> None:
        """Learns from a window whose adjustment, drawn to this belief, settled on `camera`.

        window_information (6f + 5, 6f + 5) is that of its free keyframes and the calibration, belief left
        out. Windows overlap: only `new_part` of what one says was not in earlier ones.
        """
        c = CALIBRATION_SIZE
        poses, cross = window_information[:-c, :-c], window_information[:-c, -c:]
        # Poses are only known up to scale: the tiny ridge keeps that direction solvable.
        ridge = _RIDGE * np.trace(poses) / len(poses) * np.eye(len(poses))
        alone = window_information[-c:, -c:] - cross.T @ np.linalg.solve(poses + ridge, cross)
        alone = 0.5 * (alone + alone.T)
        if np.linalg.eigvalsh(alone)[0] < 0:
            return
        said = (self.information + alone) @ calibration_vector(camera) - self.vector
        self.vector = self.vector + new_part * said
        self.information = self.information + new_part * alone
