"""What a loop's window is made of: frames around a place, and the points that are compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from anchor3r.geometry import SE3
from anchor3r.loops import reinsertion
from anchor3r.loops.reinsertion import (
    Reinsertion,
    ReinsertionConfig,
    _RememberedFrames,
    _surer_half,
    neighbourhood,
)
from anchor3r.predictors.interface import Predictor, WindowPrediction, WindowStatus
from anchor3r.sources import Frame
from anchor3r.store import LoopState, Map
from anchor3r.trajectory import Trajectory


def poses(frames: list[int], component: list[int] | None = None) -> Trajectory:
    n = len(frames)
    return Trajectory(
        frames=np.array(frames),
        rotation=np.tile(np.eye(3), (n, 1, 1)),
        center=np.zeros((n, 3)),
        component=None if component is None else np.array(component),
    )


def test_the_neighbourhood_of_a_frame_is_around_it_and_within_its_component() -> None:
    frames = list(range(0, 40, 2))
    assert_array_equal(neighbourhood(poses(frames), 20, 5), [16, 18, 20, 22, 24])
    assert_array_equal(neighbourhood(poses(frames), 0, 5), [0, 2, 4, 6, 8])
    assert_array_equal(neighbourhood(poses(frames), 38, 5), [30, 32, 34, 36, 38])
    assert_array_equal(neighbourhood(poses(frames), 99, 3), [34, 36, 38])
    two = poses(frames, [0] * 11 + [1] * 9)
    assert_array_equal(neighbourhood(two, 20, 5), [12, 14, 16, 18, 20])
    assert_array_equal(neighbourhood(two, 22, 5), [22, 24, 26, 28, 30])
    assert_array_equal(neighbourhood(two, 24, 20), frames[11:])


def test_the_last_frame_of_a_small_component_has_its_own_neighbours() -> None:
    parts = poses([0, 1, 2, 3], [0, 0, 0, 1])
    assert_array_equal(neighbourhood(parts, 9, 2), [3])


def test_the_surer_half_of_the_points_is_taken() -> None:
    confidence = np.array([[0.0, 0.2, 0.4], [0.6, 0.8, 0.0]])
    assert_array_equal(_surer_half(confidence), [[False, False, False], [True, True, False]])
    assert _surer_half(np.zeros((2, 2))).all(), "nothing is surer than the rest"
    assert _surer_half(None)


def test_neighbouring_events_decode_a_frame_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def frame(index: int) -> Frame:
        read.append(index)
        return Frame(index=index, timestamp_s=None, image=np.zeros((10, 10, 3), np.uint8))

    remembered = _RememberedFrames(frame)
    assert [remembered(k).index for k in (1, 2, 3, 2, 3, 1, 4)] == [1, 2, 3, 2, 3, 1, 4]
    assert read == [1, 2, 3, 4]
    monkeypatch.setattr(reinsertion, "_REMEMBERED_BYTES", 600)
    few = _RememberedFrames(frame)
    read.clear()
    for k in (1, 2, 1, 3, 1, 2):  # two fit: the one that was used last stays
        assert few(k).index == k
    assert read == [1, 2, 3, 2]


class _Recorder:
    """A predictor that relates nothing, and remembers what it was asked."""

    window = 10

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []

    def relate_posed(self, members: list[Frame], member_from_map: SE3, anchor: Frame) -> WindowPrediction:
        self.asked.append(([frame.index for frame in members], anchor.index))
        return WindowPrediction(
            anchor=anchor.index,
            members=np.empty(0, np.int64),
            member_from_anchor_rotation=np.empty((0, 3, 3)),
            member_from_anchor_translation=np.empty((0, 3)),
            confidence=np.empty(0),
            status=WindowStatus.LOST,
        )


def test_the_window_of_a_place_does_not_reach_its_anchor() -> None:
    """A slow camera has keyframes so far apart that nine of them span more than the way around a loop."""
    recorder, keyframes = _Recorder(), list(range(0, 300, 25))
    scene_map = cast(Map, SimpleNamespace(points=lambda frame: None))
    reinsertion = Reinsertion(
        scene_map,
        cast(Predictor, recorder),
        lambda index: Frame(index=index, timestamp_s=None, image=np.zeros((8, 8, 3), np.uint8)),
        ReinsertionConfig(),
        online=poses(list(range(300))),
        members=np.array(keyframes),
    )
    loop, groups = reinsertion.measure(0, 200, 100, 1.0)
    assert (loop.state, groups) == (LoopState.UNRELATED, [])
    ((members, anchor),) = recorder.asked
    assert anchor == 200
    assert members == [0, 25, 50, 75, 100, 125]
    assert reinsertion.measure(0, 1, 0, 1.0)[0].state is LoopState.UNRELATED, "nothing is left of it"
    assert len(recorder.asked) == 1
