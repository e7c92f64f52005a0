"""What the confidence of a point means, for every predictor, in maps, views, pictures and exports.

It is the probability that the point lies within 5 % of its true distance from the camera, once the scale of
its frame is known. Predictors have figures of their own: a standard deviation, or what a network has learned
to say. Each becomes this probability here, by a calibration on worlds whose depth is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 0.05
"""Relative error of a distance up to which a point counts as right."""
CONFIDENCE_MEANS = "probability that a point is within 5 % of its distance, in the scale of its frame"
"""In the words that a map keeps."""
LIKELY = 0.5
"""Points of less confidence are more likely wrong than right; unless asked for, they are not shown."""


@dataclass(frozen=True, kw_only=True)
class ConfidenceCalibration:
    """How often depths of a stated relative standard deviation σ are right.

    The odds are a power of σ. For small σ they fall more slowly than those of a normal distribution: errors
    have longer tails, most of all at edges.
    """

    even_sigma: float
    """Stated standard deviation at which every second point is right."""
    steepness: float
    """The odds are (even_sigma / σ) to this power."""

    def probability(self, sigma: NDArray[Any]) -> NDArray[np.float32]:
        """The confidence of points whose depths have this relative standard deviation; it may be infinite."""
        with np.errstate(over="ignore"):
            return (1 / (1 + (np.asarray(sigma, np.float64) / self.even_sigma) ** self.steepness)).astype(
                np.float32
            )


FEATURES = ConfidenceCalibration(even_sigma=0.142, steepness=2.95)
"""Of the classical predictor's completed depths, by maximum likelihood over six worlds of 100 frames of
320 × 240 pixels: two each of streets, rooms and open ground."""
WINDOW_ESTIMATION = ConfidenceCalibration(even_sigma=0.0446, steepness=1.75)
"""Of the depths that the correlation network's window estimation measures, over 60 frames of the same worlds
at 128 × 96."""
_OLD_FEATURES = ConfidenceCalibration(even_sigma=0.117, steepness=2.39)
"""Of the standard deviations that the classical predictor stated in older maps."""
_LEARNED_REWARD = 0.2
"""α in the loss of networks that learn their own confidence, as VGGT was trained with it."""


def from_learned(confidence: NDArray[Any]) -> NDArray[np.float32]:
    """From what a network has learned under the loss c · error - α log c, c > 1, as VGGT has.

    There the expected error is α / c, in mean distances of the scene. Taken as exponentially distributed, it
    is below the tolerance with probability 1 - exp(-tolerance c / α). This is derived, not calibrated.
    """
    exponent = TOLERANCE * np.asarray(confidence, np.float64) / _LEARNED_REWARD
    return (1 - np.exp(-exponent)).astype(np.float32)


def from_old_map(confidence: NDArray[np.float32], predictor: str) -> NDArray[np.float32]:
    """From the confidences of maps that do not say what they mean: figures of the predictor that is named."""
    with np.errstate(divide="ignore"):
        if predictor.startswith("features"):
            return _OLD_FEATURES.probability(1 / confidence)
        if predictor == "network:tiny":
            return WINDOW_ESTIMATION.probability(0.02 / (np.maximum(confidence, 1) - 1))
    return from_learned(confidence)
