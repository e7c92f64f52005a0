"""States come back from arrays as they were, and share no memory with them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from anchor3r.snapshots import from_arrays, part, prefixed, to_arrays


@dataclass
class Inner:
    index: int
    image: NDArray[np.uint8] | None = None


@dataclass
class State:
    values: NDArray[np.float64]
    count: int
    factor: float
    label: str
    running: bool
    last: Inner | None
    by_number: dict[int, Inner]
    ordered: OrderedDict[str, float]
    several: list[Inner] = field(default_factory=list)
    pair: tuple[int, float] = (0, 0.0)
    many: tuple[NDArray[np.float32], ...] = ()


def full_state() -> State:
    rng = np.random.default_rng(3)
    return State(
        values=rng.normal(size=(2, 3)),
        count=7,
        factor=0.1 + 0.2,
        label="grid/7",
        running=True,
        last=Inner(3),
        by_number={5: Inner(5, np.ones((2, 2), np.uint8)), -1: Inner(-1)},
        ordered=OrderedDict(b=1.5, a=2.5),
        several=[Inner(1), Inner(2, np.zeros(3, np.uint8))],
        pair=(4, 0.25),
        many=(np.float32([1, 2]), np.float32([])),
    )


def test_everything_comes_back() -> None:
    state = full_state()
    again = from_arrays(State, to_arrays(state))
    assert_array_equal(again.values, state.values)
    assert (again.count, again.factor, again.label, again.running) == (7, 0.1 + 0.2, "grid/7", True)
    assert type(again.count) is int
    assert type(again.running) is bool
    assert again.last == Inner(3)
    assert list(again.by_number) == [5, -1]
    assert_array_equal(again.by_number[5].image, np.ones((2, 2), np.uint8))
    assert list(again.ordered.items()) == [("b", 1.5), ("a", 2.5)]
    assert isinstance(again.ordered, OrderedDict)
    assert [inner.index for inner in again.several] == [1, 2]
    assert again.several[0].image is None
    assert again.pair == (4, 0.25)
    assert [array.tolist() for array in again.many] == [[1, 2], []]
    assert again.many[1].dtype == np.float32


def test_none_and_empty_containers_are_told_apart() -> None:
    state = full_state()
    state.last, state.by_number, state.several = None, {}, []
    again = from_arrays(State, to_arrays(state))
    assert again.last is None
    assert again.by_number == {}
    assert again.several == []


def test_a_snapshot_is_not_changed_by_what_follows() -> None:
    state = full_state()
    arrays = to_arrays(state)
    before = state.values.copy()
    state.values[:] = 0
    again = from_arrays(State, arrays)
    again.values[:] = 1
    assert_array_equal(from_arrays(State, arrays).values, before)


def test_a_missing_array_is_an_error() -> None:
    arrays = to_arrays(full_state())
    del arrays["count"]
    with pytest.raises(KeyError):
        from_arrays(State, arrays)


def test_parts_are_named_apart() -> None:
    arrays = to_arrays(full_state())
    both = prefixed("one", arrays) | prefixed("two", arrays)
    assert set(part(both, "one")) == set(arrays)
    assert part(both, "on") == {}
