"""Place retrieval: true places are found, places that were never left are not, recall is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.geometry import SE3, so3_exp
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, _similarity, recall_of, retrieve, whitened

ROUND = 40  # keyframes of a circle
STEP = 5  # frames between keyframes


def circle(num_keyframes: int, *, noise: float = 0.3, seed: int = 0) -> Keyframes:
    """Keyframes around a circle; a place's descriptor is smooth along the way, plus noise of each visit."""
    rng = np.random.default_rng(seed)
    phase, frequency = rng.uniform(0, 2 * np.pi, 256), rng.integers(1, 9, 256)
    angle = 2 * np.pi * np.arange(num_keyframes) / ROUND
    descriptor = np.sin(angle[:, None] * frequency + phase) + noise * rng.standard_normal(
        (num_keyframes, 256)
    )
    rotation = so3_exp(np.stack([0 * angle, angle, 0 * angle], -1))
    center = 10 * np.stack([np.cos(angle), 0 * angle, np.sin(angle)], -1)
    return Keyframes(
        frames=STEP * np.arange(num_keyframes),
        descriptor=descriptor.astype(np.float32),
        camera_from_world=SE3(rotation, -(rotation @ center[..., None])[..., 0]),
        component=np.zeros(num_keyframes, np.int64),
    )


@pytest.mark.parametrize("run", [0, 1, 3])
def test_similarity_is_the_mean_over_neighbours_of_both(run: int) -> None:
    rng = np.random.default_rng(run)
    descriptor, rows = rng.standard_normal((9, 4)), np.array([0, 2, 7, 8])
    found = _similarity(descriptor, rows, run)
    for b, row in enumerate(rows):
        for column in range(9):
            both = [
                descriptor[row + shift] @ descriptor[column + shift]
                for shift in range(-run, run + 1)
                if 0 <= row + shift < 9 and 0 <= column + shift < 9
            ]
            assert found[b, column] == pytest.approx(np.mean(both))


def test_the_second_round_finds_the_first() -> None:
    keyframes = circle(2 * ROUND)
    config = RetrievalConfig(top_k=1)
    matches = retrieve(keyframes, config)
    second = matches.query >= ROUND * STEP
    offset = (matches.query - matches.match)[second]
    assert second.sum() >= ROUND - 2
    assert np.all(np.abs(offset - ROUND * STEP) <= STEP)
    recall = recall_of(matches, keyframes, config, radius=3.0)
    assert recall.num_revisits >= ROUND
    assert recall.recall > 0.9


def test_matches_are_earlier_and_ordered_and_apart() -> None:
    config = RetrievalConfig(min_similarity=-1.0, apart=25, top_k=3)
    matches = retrieve(circle(3 * ROUND), config)
    assert np.all(matches.query - matches.match >= config.min_gap)
    assert_array_equal(matches.query, np.sort(matches.query))
    for query in np.unique(matches.query):
        mine = matches.query == query
        assert mine.sum() <= 3
        assert np.all(np.diff(matches.similarity[mine]) <= 0)
        places = np.sort(matches.match[mine])
        assert np.all(np.diff(places) >= config.apart)


def test_a_place_that_was_never_left_is_no_loop() -> None:
    keyframes = circle(2 * ROUND)
    still = replace(keyframes, camera_from_world=keyframes.camera_from_world[np.zeros(2 * ROUND, int)])
    assert len(retrieve(still)) == 0


def test_visits_that_are_too_close_in_time_are_no_loop() -> None:
    keyframes = circle(3 * ROUND)
    matches = retrieve(keyframes, RetrievalConfig(top_k=5, min_gap=STEP * (ROUND + 10)))
    offset = matches.query - matches.match
    assert len(matches) >= ROUND - 2
    assert offset.min() >= STEP * (ROUND + 10)
    assert retrieve(keyframes, RetrievalConfig(top_k=5)).query.min() < matches.query.min()


def test_looking_away_and_back_is_a_loop() -> None:
    keyframes = circle(2 * ROUND)
    rotation = keyframes.camera_from_world.rotation
    turning = replace(keyframes, camera_from_world=SE3(rotation, np.zeros((len(rotation), 3))))
    matches = retrieve(turning, RetrievalConfig(top_k=1))
    assert len(matches) >= ROUND - 2


def test_another_component_counts_as_away() -> None:
    keyframes = circle(2 * ROUND)
    still = keyframes.camera_from_world[np.zeros(2 * ROUND, int)]
    component = (np.arange(2 * ROUND) >= ROUND).astype(np.int64)
    matches = retrieve(replace(keyframes, camera_from_world=still, component=component))
    assert len(matches) > 0
    assert np.all(matches.query >= ROUND * STEP)
    assert np.all(matches.match < ROUND * STEP)


def test_runs_outvote_a_lookalike() -> None:
    keyframes = circle(2 * ROUND, noise=0.1)
    query, true, lookalike = ROUND + 20, 20, 5
    descriptor = keyframes.descriptor.copy()
    descriptor[lookalike] = descriptor[query]
    confused = replace(keyframes, descriptor=descriptor)
    for run, place in ((0, lookalike), (2, true)):
        matches = retrieve(confused, RetrievalConfig(top_k=1, run=run))
        assert matches.match[matches.query == query * STEP] == place * STEP


def test_blocks_give_what_one_block_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    keyframes = circle(2 * ROUND + 7)
    whole = retrieve(keyframes)
    monkeypatch.setattr("anchor3r.loops.retrieval._BLOCK", 8)
    parts = retrieve(keyframes)
    assert_array_equal(parts.query, whole.query)
    assert_array_equal(parts.match, whole.match)
    assert_allclose(parts.similarity, whole.similarity)


def test_whitening_evens_out_what_all_images_share() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((200, 20)) * np.linspace(1, 30, 20) + 100
    unit = whitened(values.astype(np.float32), 16)
    assert unit.shape == (200, 16)
    assert_allclose(np.linalg.norm(unit, axis=1), 1)
    cosine = unit @ unit.T
    assert abs(cosine[np.triu_indices(200, 1)].mean()) < 0.02
    spread = unit.std(0)
    assert spread.max() < 1.5 * spread.min()


def test_whitening_by_a_sample_is_that_by_all_where_the_sample_tells_the_same() -> None:
    rng = np.random.default_rng(2)
    once = (rng.standard_normal((120, 20)) * np.linspace(1, 30, 20) + 100).astype(np.float32)
    twice = np.repeat(once, 2, axis=0)  # every second one has the mean and the directions of all
    by_all, by_sample = whitened(twice, 12), whitened(twice, 12, sample=120)
    # Directions may come with another sign, so that angles between descriptors are compared.
    assert_allclose(by_sample @ by_sample.T, by_all @ by_all.T, atol=1e-9)
    assert not np.allclose(whitened(twice, 12, sample=60) @ by_sample.T, by_all @ by_all.T, atol=1e-3)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_few_keyframes_are_no_error(count: int) -> None:
    keyframes = circle(count)
    assert len(retrieve(keyframes)) == 0
    assert np.isnan(recall_of(retrieve(keyframes), keyframes, radius=1.0).recall)


def test_recall_counts_missed_and_false_matches() -> None:
    keyframes = circle(2 * ROUND)
    config = RetrievalConfig(top_k=1)
    matches = retrieve(keyframes, config)
    keep = np.arange(len(matches)) % 2 == 0
    halved = replace(
        matches, query=matches.query[keep], match=matches.match[keep], similarity=matches.similarity[keep]
    )
    whole, half = (recall_of(m, keyframes, config, radius=3.0) for m in (matches, halved))
    assert half.num_revisits == whole.num_revisits
    assert half.num_found == pytest.approx(whole.num_found / 2, abs=1)
    wrong = replace(matches, match=np.zeros_like(matches.match))
    assert recall_of(wrong, keyframes, config, radius=3.0).num_true < 5


def test_keyframes_must_be_in_order_and_complete() -> None:
    keyframes = circle(6)
    with pytest.raises(ValueError, match="ascending"):
        replace(keyframes, frames=keyframes.frames[::-1])
    with pytest.raises(ValueError, match="each"):
        replace(keyframes, descriptor=keyframes.descriptor[:-1])


@pytest.mark.parametrize(("count", "dimensions"), [(0, 1), (3, 1), (8, 2), (19, 4), (200, 16)])
def test_few_descriptors_leave_few_dimensions(count: int, dimensions: int) -> None:
    values = np.random.default_rng(1).standard_normal((count, 30)).astype(np.float32)
    assert whitened(values, 16).shape == (count, dimensions if count else 0)
