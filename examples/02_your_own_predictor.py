"""A predictor of your own: ORB features, an essential matrix, and every step one long.

python examples/02_your_own_predictor.py SOURCE MAP

Whatever says where the frames of a window lie relative to the newest one can be a predictor. It need not know
anything about maps, loops or global poses: those follow from what it measures.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

import anchor3r
from anchor3r.predictors import Predictor, WindowPrediction
from anchor3r.sources import Frame


class EssentialMatrixPredictor(Predictor):
    """Relates each frame to the one before it."""

    name, window = "essential-matrix", 2

    def __init__(self) -> None:
        self._previous: Frame | None = None
        self._orb = cv2.ORB_create(1000)

    @property
    def settings(self) -> dict[str, Any]:
        return {"features": 1000}

    def reset(self) -> None:
        self._previous = None

    def step(self, frame: Frame) -> WindowPrediction:
        members = [] if self._previous is None else [self._previous]
        self._previous = frame
        return self.relate(members, frame)

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        poses = [self._member_from_anchor(member, anchor) for member in members]
        return WindowPrediction(
            anchor=anchor.index,
            members=np.array([member.index for member in members], np.int64),
            member_from_anchor_rotation=np.array([r for r, _ in poses]).reshape(-1, 3, 3),
            member_from_anchor_translation=np.array([t for _, t in poses]).reshape(-1, 3),
            confidence=np.ones(len(members)),
            intrinsics=anchor.intrinsics,
        )

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """What a resumed map needs; here it starts a new component instead."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.reset()

    def _member_from_anchor(self, member: Frame, anchor: Frame) -> tuple[NDArray[Any], NDArray[Any]]:
        assert anchor.intrinsics is not None, "this predictor wants a source that knows its camera"
        found = [self._orb.detectAndCompute(frame.image, None) for frame in (anchor, member)]
        pairs = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(found[0][1], found[1][1])
        here = np.float64([found[0][0][pair.queryIdx].pt for pair in pairs])
        there = np.float64([found[1][0][pair.trainIdx].pt for pair in pairs])
        camera = anchor.intrinsics.matrix()
        essential, inliers = cv2.findEssentialMat(here, there, camera, cv2.RANSAC, 0.999, 1.0)
        _, rotation, translation, _ = cv2.recoverPose(essential, here, there, camera, mask=inliers)
        return rotation, translation[:, 0]


def main(uri: str, folder: str) -> None:
    summary = anchor3r.map_source(uri, folder, predictor=EssentialMatrixPredictor())
    print(f"{summary['with_pose']} of {summary['frames']} frames have a pose")


if __name__ == "__main__":
    main(*sys.argv[1:])
