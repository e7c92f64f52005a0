"""The interface between whatever looks at images and the motion graph.

A predictor looks at a short window and says where each earlier frame of it lies relative to the current
one (the transient anchor), and what the anchor's own geometry is. It never holds a world coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole
from anchor3r.sources.frame import Frame

Dtype = Literal["auto", "float32", "bfloat16"]
"""Precision of a network's backbone and cache; its heads and correlations are float32 always."""


class WindowStatus(StrEnum):
    """How a predictor fared on one frame."""

    INITIALISING = "initialising"
    """No pose yet; a later window will name this frame among its members."""
    OK = "ok"
    LOST = "lost"
    """No relation to earlier frames was found; the next good window starts a new component."""


class NoPoseReason(StrEnum):
    """Why a frame has no pose; a later window may still name it among its members."""

    FEW_FEATURES = "too few features"
    """The image shows too little that can be recognised: a blank wall, darkness, blur."""
    NO_MOTION = "no motion"
    """The camera has hardly moved since the first frame that is waited with."""
    NO_PARALLAX = "no parallax"
    """The image moves, but too little of that is due to a translation, or not clearly so."""
    NO_OVERLAP = "no overlap"
    """What earlier frames saw is not found again: a cut, a jump, too fast a motion."""
    NOT_PLACED = "not placed"
    """A photograph in no order that shares too little with the others to be placed among them."""


@dataclass(frozen=True, kw_only=True)
class MemberPoints:
    """The point map of a frame that had none when it was the anchor, on a grid that spans its image."""

    frame: int
    """Index of the frame, a member of the window."""
    points_in_member: NDArray[np.float32]
    """(h, w, 3) in the window's scale; NaN where there is none"""
    confidence: NDArray[np.float32]
    """(h, w) as `WindowPrediction.points_confidence`"""
    colours: NDArray[np.uint8]
    """(h, w, 3) RGB of the frame's image"""
    intrinsics: Pinhole
    """Of the frame's image as it came from the source."""


@dataclass(frozen=True, kw_only=True)
class WindowPrediction:
    """Everything measured at one anchor. All of it is in one scale."""

    anchor: int
    """Index of the current frame."""
    members: NDArray[np.int64]
    """(n,) indices of the other frames of the window; the anchor is not among them."""
    member_from_anchor_rotation: NDArray[np.float64]
    """(n, 3, 3) ≈ R_member R_anchorᵀ"""
    member_from_anchor_translation: NDArray[np.float64]
    """(n, 3) ≈ R_member (c_anchor - c_member)"""
    confidence: NDArray[np.float64]
    """(n,) relative weight of each edge; 1 where the predictor cannot tell."""
    covariance: NDArray[np.float64] | None = None
    """(n, 6, 6) of right perturbations (rotation, translation) of the edges, where the predictor can tell."""
    covariance_alone: NDArray[np.float64] | None = None
    """(n, 6, 6) of the same, of this window by itself, where `covariance` makes up for errors that many
    windows share; None if that is the same."""
    points_in_anchor: NDArray[np.float32] | None = None
    """(h, w, 3) point map of the anchor, on a grid that spans its image; NaN where there is none."""
    points_confidence: NDArray[np.float32] | None = None
    """(h, w) probability that a point is within 5 % of its distance, see `predictors.confidence`; None if all
    are as sure as can be."""
    member_points: tuple[MemberPoints, ...] = ()
    """Of members that waited for this window to get their geometry."""
    intrinsics: Pinhole | None = None
    """Estimated or taken from the frame; of the anchor's image as it came from the source."""
    log_scale_ratio: float = 0.0
    """log(this window's scale / the previous window's scale), as measured on what both have seen."""
    log_scale_sigma: float | None = None
    """Standard deviation of `log_scale_ratio`; None if the predictor's scale is one throughout or the ratio
    was not measured."""
    descriptor: NDArray[np.float32] | None = None
    """Global description of the anchor's image for place retrieval."""
    status: WindowStatus = WindowStatus.OK
    reason: NoPoseReason | None = None
    """Why the anchor has no pose, where the predictor can tell."""
    measured_by: str | None = None
    """Name of the predictor that measured it, where a predictor consists of several."""


class Predictor(Protocol):
    """Anything that measures windows. Streaming state is one object with named transitions.

    A class that inherits from this one has to define what has no default here.
    """

    loaded_as: dict[str, Any] | None = None
    """Arguments by which `load_predictor` makes the same predictor again; None if it was built by hand."""
    gains_from_threads: bool = False
    """Whether its arithmetic is large enough to be spread over all cores; else one thread is faster."""
    relates_concurrently: bool = False
    """Whether several threads may call `relate` and `relate_posed` at once, for the same bits."""
    calibrates: bool = False
    """Whether it finds out about a camera that the source does not state, see `estimated_camera`."""
    is_ground_truth: bool = False
    """Whether its measurements are the source's ground truth, so that a map is no reconstruction."""

    @property
    def name(self) -> str:
        """What to write into a map about where its measurements came from."""

    @property
    def window(self) -> int:
        """The largest number of frames that `relate` takes, the anchor included; the windows of a stream may
        name older frames besides."""

    @property
    def settings(self) -> dict[str, Any]:
        """What else decides its measurements, as JSON: its config, and the digest of its weights."""

    def reset(self) -> None:
        """Forgets the stream."""

    def step(self, frame: Frame) -> WindowPrediction:
        """Takes the next frame as anchor and measures its window."""

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        """Measures a window of chosen frames (loop reinsertion), leaving the streaming state alone."""

    def relate_posed(self, members: Sequence[Frame], member_from_map: SE3, anchor: Frame) -> WindowPrediction:
        """`relate`, told where the members (n,) lie in some frame and scale, roughly.

        What is measured does not depend on it, but it may be found sooner and with less doubt. A predictor
        that has no use for that measures without.
        """
        return self.relate(members, anchor)

    def estimated_camera(self) -> dict[str, float | bool] | None:
        """What it has found out about the stream's camera; None if it does not calibrate or has seen nothing.

        "stated" says whether the source knew the camera, "held" whether it was taken as it is, "doubted"
        whether what was seen contradicts the "stated_focal_px"; "focal_px" and "focal_sigma_px" are the focal
        length and its standard deviation; "determined" is false where what was seen does not tell it. "fx",
        "fy", "cx", "cy", "width" and "height" are the camera, "cx_sigma" and "cy_sigma" the spread of its
        principal point, "k1", "k2", "k1_sigma" and "k2_sigma" the radial distortion and its spread. All in
        pixels of the source's images.
        """
        return None

    def assume_camera(self, camera: Mapping[str, float | bool]) -> None:
        """Begins with the camera that `estimated_camera` told after an earlier pass over the stream, if the
        source states none; with an entry `checked` if a second pass has agreed. To be called before the first
        frame."""
        return

    def hold_camera(self, camera: Mapping[str, float | bool]) -> bool:
        """Takes what `estimated_camera` said of another run over the same camera, and holds it; forgets the
        stream. False if it has no use for that."""
        return False

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The streaming state as arrays, so that `restore` goes on bit for bit from here."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Puts back what `snapshot` gave."""
