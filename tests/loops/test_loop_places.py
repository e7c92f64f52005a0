"""Loops by places: where a keyframe was by those around another, or nothing if that is not certain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.geometry import SE3, rotation_angle, so3_exp
from anchor3r.loops.places import PlaceConfig, PlaceSearch, place_event
from anchor3r.places.keyframes import PlaceKeyframe, describe_keyframe
from anchor3r.places.localiser import PosedKeyframes
from anchor3r.places.vocabulary import load_vocabulary
from anchor3r.store import LoopState
from box_room import CAMERA, BoxRoom

NUM, VISIT = 8, 5
"""Keyframes of a map; from VISIT on they see again what the first ones saw."""


def pose_at(x: float, z: float, yaw: float = 0.0) -> SE3:
    return SE3.from_center(so3_exp(np.array([0.0, yaw, 0.0])), np.array([x, 0.0, z]))


PATH = [pose_at(0.3 * k, -1.0) for k in range(VISIT)] + [
    pose_at(0.25 + 0.3 * k, -0.4, yaw=0.1) for k in range(NUM - VISIT)
]
"""Past a wall, and past it again, nearer and turned."""


def depth_at(pose: SE3) -> np.ndarray:
    direction = CAMERA.unproject_map(np.ones((CAMERA.height, CAMERA.width))) @ pose.rotation
    with np.errstate(divide="ignore"):
        distance = (np.sign(direction) * np.array([4.0, 2.5, 5.0]) - pose.center()) / direction
    return distance.min(-1).astype(np.float32)


def place(frame: int, room: BoxRoom, scale: float = 1.0) -> PlaceKeyframe:
    """A keyframe whose depths are in a scale of its own."""
    depth = depth_at(PATH[frame]) / np.float32(scale)
    image = room.frame(0, PATH[frame]).image
    return describe_keyframe(frame, image, depth, np.full_like(depth, 0.9), load_vocabulary())


def search_of(
    places: list[PlaceKeyframe], scale: np.ndarray | None = None
) -> tuple[PlaceSearch, PosedKeyframes]:
    search = PlaceSearch(lambda frame: places[frame])
    for described in places:
        search.add(described)
    posed = PosedKeyframes(
        frames=np.arange(NUM),
        camera_from_world=SE3.from_center(
            np.stack([pose.rotation for pose in PATH]), np.stack([pose.center() for pose in PATH])
        ),
        scale=np.ones(NUM) if scale is None else scale,
        component=np.zeros(NUM, np.int64),
        camera=CAMERA,
        lens=(0.0, 0.0),
        read=lambda frame: places[frame],
    )
    return search, posed


@pytest.fixture(scope="module")
def room() -> list[PlaceKeyframe]:
    return [place(frame, BoxRoom(seed=4)) for frame in range(NUM)]


def test_a_keyframe_is_recognised_and_placed_from_elsewhere(room: list[PlaceKeyframe]) -> None:
    search, posed = search_of(room)
    allowed = np.arange(NUM) < VISIT
    match = int(search.candidates(room[6], allowed)[0])
    assert match < VISIT
    seen = search.look(posed, 6, match)
    assert seen is not None
    assert np.linalg.norm(seen.pose.center() - PATH[6].center()) < 0.05
    assert np.degrees(rotation_angle(seen.pose.rotation @ PATH[6].rotation.T)) < 0.7
    assert len(seen.rows) >= 3
    assert np.all(seen.rows < VISIT)
    assert seen.covered > 0.9


def test_edges_say_how_both_lie_and_what_the_scale_is(room: list[PlaceKeyframe]) -> None:
    """The keyframe's own depths are half as long, as if its window had twice the scale."""
    places = [*room[:6], place(6, BoxRoom(seed=4), scale=2.0), *room[7:]]
    search, posed = search_of(places)
    seen = search.look(posed, 6, 2)
    assert seen is not None
    assert_allclose(seen.log_scale.value, np.log(2.0), atol=0.03)
    edges = search.edges(posed, seen, is_free=True)
    for k, member in enumerate(edges.frame_i.tolist()):
        true = PATH[member] @ PATH[6].inverse()
        assert_allclose(2.0 * edges.translation[k], true.translation, atol=0.06)
        assert np.degrees(rotation_angle(edges.rotation[k] @ true.rotation.T)) < 1
    off = 2.0 * edges.translation[0] - (PATH[edges.frame_i[0]] @ PATH[6].inverse()).translation
    assert off @ (edges.information[0][3:, 3:] / 4) @ off < 30
    fixed = search.edges(posed, seen, is_free=False)
    assert_allclose(fixed.translation, 2.0 * edges.translation, rtol=0.04)


def test_an_event_is_measured_both_ways(room: list[PlaceKeyframe]) -> None:
    search, posed = search_of(room)
    event = place_event(search, posed, 6, 2, is_free=False)
    assert event is not None
    loop, groups = event
    assert (loop.query, loop.match, loop.state) == (6, 2, LoopState.PENDING)
    assert [set(group.frame_t.tolist()) for group in groups] == [{6}, {2}]
    # Where the odometry around one end is bent, both directions cannot agree.
    rotation = posed.camera_from_world.rotation.copy()
    rotation[6] = so3_exp(np.array([0.0, 0.1, 0.0])) @ rotation[6]
    bent = SE3.from_center(rotation, posed.camera_from_world.center())
    event = place_event(search, replace(posed, camera_from_world=bent), 6, 2, is_free=False)
    assert event is None or event[0].state is LoopState.ASYMMETRIC


def test_another_room_is_not_recognised(room: list[PlaceKeyframe]) -> None:
    places = [*room[:6], place(6, BoxRoom(seed=77)), *room[7:]]
    search, posed = search_of(places)
    assert all(search.look(posed, 6, row) is None for row in range(VISIT))


def test_a_wall_that_fits_is_not_enough(room: list[PlaceKeyframe]) -> None:
    """Of a house that is painted alike, a part fits well, but most of what should be seen is not there."""
    alike, other = room[6].features, place(6, BoxRoom(seed=77)).features
    is_same = alike.pixel[:, 0] < 0.22 * CAMERA.width
    descriptor = alike.descriptor.copy()
    rows = np.flatnonzero(~is_same)
    descriptor[rows] = other.descriptor[np.arange(len(rows)) % len(other)]
    twin = replace(room[6], features=replace(alike, descriptor=descriptor))
    search, posed = search_of([*room[:6], twin, *room[7:]])
    assert search.look(posed, 6, 2) is None
    lenient = PlaceConfig(min_covered=0.0)
    search.config = lenient
    seen = search.look(posed, 6, 2)
    assert seen is not None
    assert seen.covered < PlaceConfig().min_covered


def test_forgetting_every_second_keyframe(room: list[PlaceKeyframe]) -> None:
    search, _ = search_of(room)
    before = search.index.scores(room[6].word, room[6].signature)
    search.thin()
    after = search.index.scores(room[6].word, room[6].signature)
    assert len(after) == NUM // 2
    assert after.argmax() == 3  # itself
    assert np.argmax(before[:VISIT:2]) == np.argmax(after[: (VISIT + 1) // 2])


def test_a_config_without_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="counts"):
        PlaceConfig(candidates=0)
    with pytest.raises(ValueError, match="min_covered"):
        PlaceConfig(min_covered=2.0)
