"""Features, words, index and poses: what each promises, on made-up and on rendered data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, rotation_angle, so3_exp
from anchor3r.places.features import LocalFeatures, extract, match, unit_vectors
from anchor3r.places.index import IndexConfig, PlaceIndex
from anchor3r.places.keyframes import PlaceKeyframe, describe_keyframe
from anchor3r.places.localiser import Localiser, LocaliserConfig, PosedKeyframes, Refusal, pooled
from anchor3r.places.pose import Matches, PoseConfig, find_pose, judge_pose, refine_pose
from anchor3r.places.vocabulary import SHIPPED, load_vocabulary, save_vocabulary, train_vocabulary
from box_room import CAMERA, BoxRoom

ROOM = BoxRoom(seed=4)
SIGMA = 0.002


def pose_at(x: float, z: float, yaw: float = 0.0) -> SE3:
    return SE3.from_center(so3_exp(np.array([0.0, yaw, 0.0])), np.array([x, 0.0, z]))


def image_at(pose: SE3) -> np.ndarray:
    return ROOM.frame(0, pose).image


def depth_at(pose: SE3) -> np.ndarray:
    """To the walls of the room, exactly."""
    rays = CAMERA.unproject_map(np.ones((CAMERA.height, CAMERA.width)))
    direction = rays @ pose.rotation
    with np.errstate(divide="ignore"):
        distance = (np.sign(direction) * np.array([4.0, 2.5, 5.0]) - pose.center()) / direction
    return distance.min(-1).astype(np.float32)


def keyframe_at(frame: int, pose: SE3) -> PlaceKeyframe:
    depth = depth_at(pose)
    return describe_keyframe(frame, image_at(pose), depth, np.full_like(depth, 0.99), load_vocabulary())


@pytest.fixture(scope="module")
def localiser() -> Localiser:
    poses = [pose_at(0.3 * k - 0.6, -1.0) for k in range(5)]
    described = {k: keyframe_at(k, pose) for k, pose in enumerate(poses)}
    keyframes = PosedKeyframes(
        frames=np.arange(5),
        camera_from_world=SE3.from_center(
            np.stack([pose.rotation for pose in poses]), np.stack([pose.center() for pose in poses])
        ),
        scale=np.ones(5),
        component=np.zeros(5, np.int64),
        camera=CAMERA,
        lens=(0.0, 0.0),
        read=described.__getitem__,
    )
    return Localiser(keyframes, load_vocabulary())


def test_an_image_between_keyframes_is_found_with_an_honest_covariance(localiser: Localiser) -> None:
    truth = pose_at(0.17, -0.7, yaw=0.15)
    found = localiser.localise(extract(image_at(truth)), CAMERA)
    assert found.camera_from_world is not None
    assert found.covariance is not None
    off = found.camera_from_world.center() - truth.center()
    assert np.linalg.norm(off) < 0.03
    turned = rotation_angle(found.camera_from_world.rotation @ truth.rotation.T)
    assert np.degrees(turned) < 0.5
    assert off @ np.linalg.solve(found.covariance[3:, 3:], off) < 25
    assert found.position_sigma is not None
    assert found.position_sigma < 0.05
    assert found.num_inliers > 20
    assert len(found.keyframes) >= 2
    assert found.log10_chance < -6


def test_an_image_of_another_room_is_refused(localiser: Localiser) -> None:
    elsewhere = BoxRoom(seed=77).frame(0, pose_at(0.1, -0.8)).image
    found = localiser.localise(extract(elsewhere), CAMERA)
    assert not found.found
    assert found.covariance is None
    assert found.position_sigma is None
    assert found.refusal in (Refusal.CHANCE, Refusal.NO_PLACE)


def test_the_same_wall_seen_away_from_the_keyframes_is_refused(localiser: Localiser) -> None:
    """The camera looks at the wall behind, which no keyframe shows."""
    found = localiser.localise(extract(image_at(pose_at(0.0, -0.5, yaw=np.pi))), CAMERA)
    assert not found.found


def test_an_image_without_features_is_refused(localiser: Localiser) -> None:
    found = localiser.localise(extract(np.full((180, 240, 3), 90, np.uint8)), CAMERA)
    assert found.refusal is Refusal.NO_FEATURES


def test_keyframes_that_are_not_asked_do_not_answer(localiser: Localiser) -> None:
    features = extract(image_at(pose_at(0.17, -0.7)))
    assert localiser.localise(features, CAMERA, allowed=np.zeros(5, bool)).refusal is Refusal.NO_PLACE


def test_features_of_a_larger_image_are_in_its_own_pixels() -> None:
    image = image_at(pose_at(0, 0))
    large = np.repeat(np.repeat(image, 4, 0), 4, 1)  # 960 wide: reduced to 640 inside
    small, big = extract(image), extract(large)
    pairs = match(unit_vectors(small.descriptor), unit_vectors(big.descriptor))
    assert len(pairs) > 50
    expected = (small.pixel[pairs[:, 0]] + 0.5) * 4 - 0.5
    off = np.abs(expected - big.pixel[pairs[:, 1]]).max(1)
    assert np.median(off) < 4


def test_matches_are_mutual_and_clear() -> None:
    one = np.eye(4, dtype=np.float32)
    other = np.array([[1, 0.1, 0, 0], [0, 1, 0.1, 0], [0, 1, 0, 0.11]], np.float32)
    unit = other / np.linalg.norm(other, axis=1, keepdims=True)
    assert match(one, unit).tolist() == [[0, 0]]
    assert match(one[:0], unit).shape == (0, 2)


def test_the_vocabulary_that_ships_is_small_and_quantises_by_itself() -> None:
    vocabulary = load_vocabulary()
    assert SHIPPED.stat().st_size < 5e6
    assert vocabulary.size == 32_768
    described = extract(image_at(pose_at(0, 0))).descriptor
    word, signature = vocabulary.quantise(described)
    again = vocabulary.quantise(described[::-1])
    np.testing.assert_array_equal(word, again[0][::-1])
    np.testing.assert_array_equal(signature, again[1][::-1])
    assert word.min() >= 0
    assert word.max() < vocabulary.size
    assert len(np.unique(word)) > len(word) / 3


def test_training_repeats_and_survives_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    centers = rng.integers(0, 255, (8, 128))
    descriptor = np.clip(centers[rng.integers(0, 8, 600)] + rng.integers(-9, 9, (600, 128)), 0, 255)
    made = [
        train_vocabulary(descriptor.astype(np.uint8), dimensions=16, branches=4, words=4) for _ in range(2)
    ]
    assert made[0].digest == made[1].digest
    save_vocabulary(tmp_path / "v.npz", made[0], "a test")
    read = load_vocabulary(tmp_path / "v.npz")
    same = made[0].quantise(descriptor.astype(np.uint8))[0] == read.quantise(descriptor.astype(np.uint8))[0]
    assert same.mean() > 0.9
    with pytest.raises(Anchor3RError, match="more images"):
        train_vocabulary(descriptor[:10].astype(np.uint8), branches=4, words=4)
    (tmp_path / "no.npz").write_bytes(b"nothing")
    with pytest.raises(Anchor3RError, match="no vocabulary"):
        load_vocabulary(tmp_path / "no.npz")


def test_the_index_finds_a_keyframe_again_whatever_segment_it_is_in() -> None:
    rng = np.random.default_rng(1)
    index = PlaceIndex(500, IndexConfig(segment=2, growth=2, largest=8, features=60))
    kept = [
        (rng.integers(0, 500, 60).astype(np.int32), rng.integers(0, 2**63, 60).astype(np.uint64))
        for _ in range(21)
    ]
    for k, (word, signature) in enumerate(kept):
        assert index.add(word, signature) == k
        assert index.scores(word, signature).shape == (k + 1,)
    before = index.num_bytes
    for k, (word, signature) in enumerate(kept):
        scores = index.scores(word, signature)
        assert scores.argmax() == k
        assert np.sort(scores)[-2] < 0.2 * scores[k]
    assert len(index) == 21
    assert index.num_bytes == before > 0


def some_matches(rng: np.random.Generator, pose: SE3, count: int, wrong: int) -> Matches:
    """Points in front of the camera that are seen with noise, and some that are not where they should be."""
    in_camera = rng.uniform([-2, -1.5, 3], [2, 1.5, 8], (count, 3))
    depth_noise = 0.02 * in_camera * rng.normal(size=(count, 1))
    world = pose.inverse()
    query = in_camera[:, :2] / in_camera[:, 2:] + SIGMA * rng.normal(size=(count, 2))
    query[:wrong] = rng.uniform(-0.7, 0.7, (wrong, 2))
    return Matches(
        query=query,
        feature=np.arange(count),
        keyframe=np.arange(count) % 3,
        point=world.apply(in_camera + depth_noise),
        along=(0.02 * in_camera) @ world.rotation.T,
    )


def test_poses_of_matches_are_as_uncertain_as_they_say() -> None:
    rng, truth, config = np.random.default_rng(3), pose_at(1.0, -2.0, yaw=0.4), PoseConfig()
    squares = []
    for _ in range(40):
        matches = some_matches(rng, truth, 80, 20)
        start = find_pose(matches, SIGMA, config)
        assert start is not None
        judged = judge_pose(matches, refine_pose(matches, start, SIGMA, config), SIGMA, 1.5, config, 20)
        assert judged is not None
        assert judged.log10_chance < -20
        assert 45 <= judged.num_inliers <= 66
        off = judged.camera_from_world.center() - truth.center()
        squares.append(off @ np.linalg.solve(judged.covariance[3:, 3:], off))
    assert 1.5 < np.mean(squares) < 6, "three degrees of freedom"


def test_matches_with_points_that_are_not_seen_say_nothing_for_chance() -> None:
    """Wrong matches with what lies behind the camera: no random match would fit there."""
    rng, truth, config = np.random.default_rng(7), pose_at(1.0, -2.0, yaw=0.4), PoseConfig()
    matches = some_matches(rng, truth, 60, 20)
    behind = some_matches(rng, truth, 60, 60)
    point = truth.inverse().apply(truth.apply(behind.point) * [1, 1, -1])
    far = replace(behind, point=np.asarray(point), along=30 * behind.along)
    alone, judged = (
        judge_pose(some, truth, SIGMA, 1.5, config, 20) for some in (matches, pooled([matches, far]))
    )
    assert alone is not None
    assert judged is not None
    assert judged.num_inliers == alone.num_inliers
    assert judged.log10_chance < -20


def test_random_matches_are_called_chance() -> None:
    rng, config = np.random.default_rng(5), PoseConfig()
    for _ in range(20):
        matches = some_matches(rng, pose_at(0, 0), 60, 60)
        if (start := find_pose(matches, SIGMA, config)) is not None:
            judged = judge_pose(matches, refine_pose(matches, start, SIGMA, config), SIGMA, 1.5, config, 20)
            assert judged is None or judged.log10_chance > -6


def test_settings_that_cannot_be_are_refused() -> None:
    for make in (
        lambda: LocaliserConfig(candidates=0),
        lambda: LocaliserConfig(rival=0.0),
        lambda: IndexConfig(max_bits=65),
        lambda: PoseConfig(fit=7.0),
    ):
        with pytest.raises(ValueError, match=r"cannot be|lies in|at least"):
            make()


def test_features_select_rows() -> None:
    features = LocalFeatures(pixel=np.zeros((3, 2), np.float32), descriptor=np.ones((3, 128), np.uint8))
    assert len(features.select(np.array([True, False, True]))) == 2
