"""What can be chosen of a view; apart from the scene, so that the command line knows it without viser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anchor3r.predictors.confidence import LIKELY

MAX_POINTS = 2_000_000
"""Points on the screen at most."""
ColourBy = Literal["time", "uncertainty"]


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """What the controls say."""

    poses: str
    """Name of the trajectory that everything is placed by."""
    first: int
    """First frame of the range that is shown."""
    last: int
    """Last frame of the range that is shown."""
    component: int | None = None
    """Number of the component that is shown; None is the largest."""
    colour_by: ColourBy = "time"
    """What the trajectory's colour tells."""
    min_confidence: float = LIKELY
    """Points that are less likely than this to be within 5 % of their distance are hidden."""
    point_size: float = 1.0
    """1 is what suits the distance of typical points."""
    point_budget: int = 1_000_000
    """Largest number of points drawn."""
    cameras: int = 25
    """Largest number of camera frustums drawn."""
    accepted_loops: bool = True
    """Whether accepted loops are drawn as lines."""
    rejected_loops: bool = False
    """Whether rejected loops are drawn as lines."""
    truth: bool = True
    """Whether the ground truth is drawn, where there is any."""
