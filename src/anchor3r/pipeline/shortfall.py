"""Frames that got no pose, and why: what to tell somebody whose images do not become a map.

A predictor may know why. Where it does not, images are matched: the first with the last shows whether the
camera moves at all, neighbours show whether one image sees what the next one does. That holds for any
predictor, and for images that nobody has mapped yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.predictors.interface import NoPoseReason, WindowStatus
from anchor3r.sources import Source
from anchor3r.store import FrameTable, Map

Image = NDArray[np.uint8]
ReadImage = Callable[[int], Image]
_SAMPLED_PAIRS = 8
"""Neighbours that are looked at, spread over the frames in question."""
_MATCHING_SIDE = 640
_NUM_FEATURES = 1000
_FEWEST_FEATURES = 60
"""With fewer corners an image shows nothing that could be followed."""
_FEWEST_SHARED = 25
"""Matches on one epipolar geometry that two views of one scene have at least. Of a few hundred wrong matches
up to some 15 agree by chance: a geometry has seven degrees of freedom, and a wrong match lies within 1.5
pixels of its line with a probability of about 1 %."""
_STILL_PX = 1.0
"""Images whose matches move by less show no motion, but the noise of corners and compression."""
_WIDE_SHIFT = 0.2
"""Of the diagonal: matches of consecutive video frames move by some percent of it, by more than this only
between photographs."""
_MOVING_SHIFT = 0.03
"""Of the diagonal: images that move by less may seem out of order by noise and a shaking hand."""
_CLEARLY_LESS = 0.8
_FEW_FRAMES = 5
_EXAMINED_GAPS = 10
"""Runs of frames without a pose whose images are compared, the longest ones first."""


class Cause(StrEnum):
    """Why frames could not be placed."""

    TOO_FEW_FRAMES = "too few frames"
    NO_TEXTURE = "nothing to follow"
    NO_MOTION = "no motion"
    NO_OVERLAP = "no overlap"
    NO_PARALLAX = "no parallax"
    LOST = "tracking was lost"
    NOT_PLACED = "too little in common with the other photographs"
    NO_ANCHOR = "after the last anchor"
    UNKNOWN = "cause not known"


_CAUSE_OF = {
    NoPoseReason.FEW_FEATURES: Cause.NO_TEXTURE,
    NoPoseReason.NO_MOTION: Cause.NO_MOTION,
    NoPoseReason.NO_PARALLAX: Cause.NO_PARALLAX,
    NoPoseReason.NO_OVERLAP: Cause.NO_OVERLAP,
    NoPoseReason.NOT_PLACED: Cause.NOT_PLACED,
}
REMEDIES = {
    Cause.TOO_FEW_FRAMES: "a start takes a dozen frames or more: take a longer part, or a smaller --stride",
    Cause.NO_TEXTURE: "the images have hardly a corner to follow: are they dark, blurred or blank?",
    Cause.NO_MOTION: "the camera stands still: move it, or take a part in which it moves (--start, --stop)",
    Cause.NO_OVERLAP: "neighbouring images do not show the same things: film slower or take a smaller "
    "--stride; photographs are matched all with all by --order none",
    Cause.NO_PARALLAX: "the images move, but nothing tells near from far: does the camera only turn, or look "
    "at something flat or far away? Move it sideways; if the lens is unusual, state it (--intrinsics, --fov)",
    Cause.LOST: "the images move and overlap, but no relation to earlier ones was found: are there blur, "
    "flashes or moving things?",
    Cause.NOT_PLACED: "what a photograph shows should be seen by two others: add some in between, "
    "or take them in their full size",
    Cause.NO_ANCHOR: "take frames up to the next anchor, or a smaller --every",
    Cause.UNKNOWN: "the images are not at hand to look into it",
}


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What two images have in common."""

    num_features: int
    """Corners of the poorer image."""
    num_shared: int
    """Matches that one epipolar geometry explains."""
    shift_px: float
    """Their median displacement at the size of matching; NaN without any."""
    shift: float
    """Their median displacement as a part of the diagonal; NaN without any."""

    @property
    def is_same_scene(self) -> bool:
        return self.num_shared >= _FEWEST_SHARED


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Consecutive frames of a map that have no pose."""

    first: int
    last: int
    num_frames: int
    cause: Cause

    def in_words(self) -> str:
        which = f"frame {self.first}" if self.num_frames == 1 else f"frames {self.first}–{self.last}"
        return f"{which}: {self.cause}"


def gaps_of(scene_map: Map) -> list[Gap]:
    """All frames of a map without an online pose, in runs, each with its cause.

    What the predictor says most often of a run is its cause. Of runs of which it says nothing, the images of
    the longest ones are compared, which takes time.
    """
    table = scene_map.frames()
    missing = np.flatnonzero(~np.isin(table.index, scene_map.trajectory().frames))
    if not len(missing):
        return []
    runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1)
    longest = sorted(map(len, runs), reverse=True)[:_EXAMINED_GAPS][-1]
    reasons = scene_map.no_pose_reasons()
    every = (scene_map.meta.get("loaded_as") or {}).get("every", 1)
    with _images_of(scene_map) as read:
        return [
            Gap(
                first=int(table.index[rows[0]]),
                last=int(table.index[rows[-1]]),
                num_frames=len(rows),
                cause=_cause(table, rows, every, reasons, read if len(rows) >= longest else None),
            )
            for rows in runs
        ]


def separate_photographs(source: Source) -> str | None:
    """What shows that images are photographs rather than the frames of a video; None if nothing does."""
    frames = list(source.wanted)
    overlaps = _sampled_overlaps(frames, lambda index: source.read(index).image)
    # Blank images share nothing either, and tell nothing.
    found = [overlap for overlap in overlaps if overlap.num_features >= _FEWEST_FEATURES]
    if len(found) < 2:
        return None
    shared = [overlap for overlap in found if overlap.is_same_scene]
    if 2 * len(shared) < len(found):
        return (
            f"of {len(found)} pairs of neighbouring images that were compared, {len(found) - len(shared)} "
            "show different things"
        )
    shift = float(np.median([overlap.shift for overlap in shared]))
    if shift > _WIDE_SHIFT:
        return f"from one image to the next what they show moves by {shift:.0%} of the image"
    return _out_of_sequence(frames, lambda index: source.read(index).image)


def _out_of_sequence(frames: Sequence[int], read: ReadImage) -> str | None:
    """What shows that images are shuffled: the outer two of three are more alike than neighbours are.

    A camera that goes on is further from where it was two frames ago than one frame ago; of three images in
    no order the outer two are as likely to be the nearest as any.
    """
    moving = shuffled = 0
    for position in _spread(len(frames) - 2):
        try:
            images = [read(frame) for frame in frames[position : position + 3]]
        except Anchor3RError:
            continue
        first, second, outer = (_distance(images[a], images[b]) for a, b in ((0, 1), (1, 2), (0, 2)))
        moving += max(first, second) > _MOVING_SHIFT
        shuffled += max(first, second) > max(_MOVING_SHIFT, outer / _CLEARLY_LESS)
    if shuffled < max(2, moving / 3):
        return None
    return f"in {shuffled} of {moving} places the image after the next is more alike than the next one is"


def _distance(first: Image, second: Image) -> float:
    """How far what two images show has moved, as a part of the diagonal; infinite if they share nothing."""
    overlap = overlap_of(first, second)
    return overlap.shift if overlap.is_same_scene else np.inf


def cause_of(overlaps: Sequence[Overlap], first_with_last: Overlap) -> Cause:
    """What most of the pairs of neighbours say."""
    if np.median([overlap.num_features for overlap in overlaps]) < _FEWEST_FEATURES:
        return Cause.NO_TEXTURE
    shared = [overlap for overlap in overlaps if overlap.is_same_scene]
    if 2 * len(shared) < len(overlaps):
        return Cause.NO_OVERLAP
    if first_with_last.is_same_scene and first_with_last.shift_px < _STILL_PX:
        return Cause.NO_MOTION
    if np.median([overlap.shift for overlap in shared]) > _WIDE_SHIFT:
        return Cause.NO_OVERLAP
    return Cause.NO_PARALLAX


@contextmanager
def _images_of(scene_map: Map) -> Iterator[ReadImage | None]:
    """Reads images of a map: its own copies, or those of its source; None where neither is at hand."""
    if scene_map.keeps_images():
        yield scene_map.image
        return
    with scene_map.original_source() as source:
        yield None if source is None else lambda index: source.read(index).image


def _cause(
    table: FrameTable,
    rows: NDArray[np.int64],
    every: int,
    reasons: Mapping[int, NoPoseReason],
    read: ReadImage | None,
) -> Cause:
    """Why a run of rows has no pose; one frame out of `every` is an anchor."""
    if len(rows) == len(table) and len(table) < _FEW_FRAMES:
        return Cause.TOO_FEW_FRAMES
    if rows[-1] == len(table) - 1 and len(rows) < every:
        return Cause.NO_ANCHOR
    told = Counter(reasons[frame] for frame in table.index[rows].tolist() if frame in reasons)
    reason = told.most_common(1)[0][0] if told else None
    is_lost = bool(np.all(table.status[rows] == WindowStatus.LOST.value))
    # Tracking that breaks off tells no cut of the film from things that move: images may.
    if reason is not None and not (is_lost and reason is NoPoseReason.NO_OVERLAP and read is not None):
        return _CAUSE_OF[reason]
    if read is None:
        return Cause.UNKNOWN
    # The frame before shows whether the first one still sees what was seen.
    chosen = table.index[max(rows[0] - 1, 0) : rows[-1] + 1].tolist()
    overlaps = list(_sampled_overlaps(chosen, read))
    if not overlaps:
        return Cause.UNKNOWN
    cause = cause_of(overlaps, overlap_of(read(chosen[0]), read(chosen[-1])))
    return Cause.LOST if cause is Cause.NO_PARALLAX and is_lost else cause


def _sampled_overlaps(frames: Sequence[int], read: Callable[[int], Image]) -> Iterator[Overlap]:
    """Of pairs of neighbours spread over the frames; those that cannot be read are left out."""
    for position in _spread(len(frames) - 1):
        try:
            images = read(frames[position]), read(frames[position + 1])
        except Anchor3RError:
            continue
        yield overlap_of(*images)


def _spread(count: int) -> list[int]:
    """Some of the numbers below `count`, evenly spread, the first and the last among them."""
    chosen = {round(k * (count - 1) / max(_SAMPLED_PAIRS - 1, 1)) for k in range(_SAMPLED_PAIRS)}
    return sorted(position for position in chosen if 0 <= position < count)


def overlap_of(first: Image, second: Image) -> Overlap:
    """Matches corners of two images of one size, (H, W, 3) RGB each."""
    import cv2

    scale = min(1.0, _MATCHING_SIDE / max(first.shape))
    small = [
        cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) for image in (first, second)
    ]
    detector = cv2.ORB.create(_NUM_FEATURES)
    found = [detector.detectAndCompute(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), None) for image in small]
    num_features = min(len(points) for points, _ in found)
    nothing = Overlap(num_features=num_features, num_shared=0, shift_px=np.nan, shift=np.nan)
    if num_features < _FEWEST_SHARED:
        return nothing
    pairs = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(found[0][1], found[1][1])
    if len(pairs) < _FEWEST_SHARED:
        return nothing
    here = np.array([found[0][0][pair.queryIdx].pt for pair in pairs])
    there = np.array([found[1][0][pair.trainIdx].pt for pair in pairs])
    cv2.setRNGSeed(0)
    _, inliers = cv2.findFundamentalMat(here, there, cv2.FM_RANSAC, 1.5, 0.999, 2000)
    if inliers is None or not inliers.any():
        return nothing
    agreed = inliers.ravel() > 0
    shift_px = float(np.median(np.linalg.norm((there - here)[agreed], axis=1)))
    return Overlap(
        num_features=num_features,
        num_shared=int(agreed.sum()),
        shift_px=shift_px,
        shift=shift_px / float(np.hypot(*small[0].shape[:2])),
    )
