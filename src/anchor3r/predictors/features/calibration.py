"""Self-calibration over a sequence: each window says a little about the camera, and windows add up.

A rectification that is slightly off bends every window the same way, and the bend shows as a steady drift of
scale. One window cannot tell, hundreds can. What was known before and what windows say are kept apart: a
stated focal length is believed as a calibration is, until the evidence makes it more probable that it belongs
to another camera.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anchor3r.geometry import Array
from anchor3r.predictors.features.bundle_adjustment import Adjusted
from anchor3r.predictors.features.projection import CALIBRATION_SIZE, calibration_vector

_HELD_SIGMA = 1e-9
"""Stands for a spread of 0: information must stay finite."""
_RIDGE = 1e-9
"""Of the mean information of a parameter: makes the directions solvable that nothing is known about."""
_WRONG_CAMERA = 0.05
"""Probability that a stated focal length is not of this camera, before anything is seen: of another camera
of the same device, of another image size, or a figure from a data sheet. Ten times as much or as little moves
the error at which a stated focal length is given up by a per cent or two."""


class _Focal(NamedTuple):
    """What windows say of the log of the focal length, the other parameters eliminated under their prior."""

    mean: float
    information: float
    """0 where they say nothing"""


@dataclass
class Calibration:
    """What is known of (log f, cx, cy, k1, k2), kept as information so that windows add up."""

    prior: Array
    """(5,) as stated or assumed"""
    prior_sigma: Array
    """(5,) spread of each parameter about it, 0 holds it"""
    doubted_sigma: float
    """spread of log f about the prior if the camera stated is another one; 0 rules that out"""
    bias: float
    """spread of an error of log f that all windows share, so that it does not average out"""
    evidence: Array
    """(5, 5) information of all windows so far"""
    vector: Array
    """(5,) that times what they say"""

    @staticmethod
    def known(camera: Array, sigma: Array, *, doubted_sigma: float = 0.0, bias: float = 0.0) -> Calibration:
        """Before anything is seen; sigma (5,) is the spread of each parameter, 0 holds it."""
        c = CALIBRATION_SIZE
        return Calibration(
            calibration_vector(camera), np.asarray(sigma, float), doubted_sigma, bias,
            np.zeros((c, c)), np.zeros(c),
        )  # fmt: skip

    @property
    def is_held(self) -> bool:
        """Whether there is nothing to learn."""
        return not bool(self.prior_sigma.any())

    @property
    def is_doubted(self) -> bool:
        """Whether the evidence makes it more probable that the stated focal length is of another camera."""
        if not self.doubted_sigma > self.prior_sigma[0] > 0:
            return False
        focal = self._focal()
        if focal.information == 0:
            return False
        off, own = focal.mean - self.prior[0], 1 / focal.information + self.bias**2

        def log_likelihood(sigma: float) -> float:
            variance = sigma**2 + own
            return -0.5 * (off**2 / variance + math.log(variance))

        right = math.log(1 - _WRONG_CAMERA) + log_likelihood(float(self.prior_sigma[0]))
        return bool(math.log(_WRONG_CAMERA) + log_likelihood(self.doubted_sigma) > right)

    @property
    def information(self) -> Array:
        """(5, 5) by which a window is drawn to the mean.

        An error that all windows share counts here as none: the camera is one and the same in all of them, so
        that it must not move about by as much.
        """
        return np.diag(self._prior_information()) + self.evidence

    @property
    def mean(self) -> Array:
        """(5,)"""
        log_focal, _ = self._log_focal()
        information, vector = self._others()
        return np.append(
            log_focal, np.linalg.solve(information[1:, 1:], vector[1:] - information[1:, 0] * log_focal)
        )

    @property
    def sigma(self) -> Array:
        """(5,) marginal standard deviations"""
        _, variance = self._log_focal()
        information, _ = self._others()
        inverse = np.linalg.inv(information[1:, 1:])
        carried = inverse @ information[1:, 0]
        return np.sqrt(np.append(variance, np.diag(inverse) + variance * carried**2))

    def add(self, window: Adjusted, new_part: float) -> None:
        """Learns from the adjustment of a window.

        What it says follows from its last linearisation, so that it need not have reached its minimum: a
        change of scale along the window and one of the lens can hardly be told apart by it, and along that
        direction it converges slowly. Windows overlap: only `new_part` of what one says was not in earlier
        ones.
        """
        c, information = CALIBRATION_SIZE, window.information
        poses, cross = information[:-c, :-c], information[:-c, -c:]
        # Poses are only known up to scale: the tiny ridge keeps that direction solvable.
        ridge = _RIDGE * np.trace(poses) / len(poses) * np.eye(len(poses))
        right = np.column_stack([cross, window.gradient[:-c]])
        eliminated = cross.T @ np.linalg.solve(poses + ridge, right)
        alone = information[-c:, -c:] - eliminated[:, :c]
        alone = 0.5 * (alone + alone.T)
        if np.linalg.eigvalsh(alone)[0] < 0:
            return
        gradient = window.gradient[-c:] - eliminated[:, c]
        self.vector = self.vector + new_part * (alone @ window.calibration - gradient)
        self.evidence = self.evidence + new_part * alone

    def _prior_information(self) -> Array:
        """(5,)"""
        sigma = self.prior_sigma.copy()
        if self.is_doubted:
            sigma[0] = self.doubted_sigma
        return np.maximum(sigma, _HELD_SIGMA) ** -2.0

    def _others(self) -> tuple[Array, Array]:
        """Evidence (5, 5) and its vector (5,), with the prior of all but the focal length."""
        prior = np.maximum(self.prior_sigma, _HELD_SIGMA) ** -2.0
        prior[0] = 0.0
        return self.evidence + np.diag(prior), self.vector + prior * self.prior

    def _focal(self) -> _Focal:
        information, vector = self._others()
        solved = np.linalg.solve(information[1:, 1:], np.column_stack([information[1:, 0], vector[1:]]))
        alone = float(information[0, 0] - information[0, 1:] @ solved[:, 0])
        if not alone > _RIDGE * information[0, 0]:
            return _Focal(float(self.prior[0]), 0.0)
        return _Focal(float(vector[0] - information[0, 1:] @ solved[:, 1]) / alone, alone)

    def _log_focal(self) -> tuple[float, float]:
        """Mean and variance, with the prior and the error that all windows share."""
        focal, prior = self._focal(), float(self._prior_information()[0])
        own = focal.information / (1 + focal.information * self.bias**2)
        return (prior * float(self.prior[0]) + own * focal.mean) / (prior + own), 1 / (prior + own)
