"""Streaming state as named arrays and back, so that a stream goes on bit for bit from where it stood.

State is a dataclass. Its fields are arrays, numbers, strings, other such dataclasses, and lists, tuples and
dicts (keys are integers or strings) of these; any of them may be None. A field's type says how it is read.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
State = TypeVar("State")
_SEPARATOR = "/"
_KEYS = "#"
"""Names the array of a container's keys."""


def to_arrays(state: Any) -> Arrays:
    """Copies of everything in the state, by the path of its fields: "window/poses/rotation"."""
    arrays: Arrays = {}
    _collect(state, "", arrays)
    return arrays


def from_arrays(kind: type[State], arrays: Mapping[str, NDArray[Any]]) -> State:
    """The state of that type which `to_arrays` took apart; it shares no memory with the arrays."""
    return _build(kind, "", arrays)


def part(arrays: Mapping[str, NDArray[Any]], name: str) -> Arrays:
    """What belongs to one field, named as if it had been taken apart alone."""
    prefix = name + _SEPARATOR
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def prefixed(name: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The opposite of `part`."""
    return {f"{name}{_SEPARATOR}{key}": value for key, value in arrays.items()}


def _collect(value: Any, path: str, arrays: Arrays) -> None:
    prefix = f"{path}{_SEPARATOR}" if path else ""
    if value is None:
        return
    if is_dataclass(value):
        arrays[prefix + _KEYS] = np.empty(0, bool)  # tells a state without any field that is set from None
        for field in fields(value):
            _collect(getattr(value, field.name), prefix + field.name, arrays)
    elif isinstance(value, Mapping):
        arrays[prefix + _KEYS] = np.array(list(value))
        for key, entry in value.items():
            _collect(entry, f"{prefix}{key}", arrays)
    elif isinstance(value, list | tuple):
        arrays[prefix + _KEYS] = np.arange(len(value))
        for k, entry in enumerate(value):
            _collect(entry, f"{prefix}{k}", arrays)
    else:
        arrays[path] = np.array(value)


def _build(kind: Any, path: str, arrays: Mapping[str, NDArray[Any]]) -> Any:
    prefix = f"{path}{_SEPARATOR}" if path else ""
    origin: Any = get_origin(kind)
    arguments = get_args(kind)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        is_set = path in arrays or prefix + _KEYS in arrays
        return _build(inner, path, arrays) if is_set else None
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        values = {
            field.name: _build(hints[field.name], prefix + field.name, arrays) for field in fields(kind)
        }
        return kind(**values)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys = arrays[prefix + _KEYS].tolist()
        make: Any = origin
        return make((key, _build(arguments[1], f"{prefix}{key}", arrays)) for key in keys)
    if origin in (list, tuple):
        count = len(arrays[prefix + _KEYS])
        return origin(_build(_entry(arguments, k), f"{prefix}{k}", arrays) for k in range(count))
    value = arrays[path]
    return kind(value.item()) if kind in (int, float, bool, str) else value.copy()


def _entry(arguments: tuple[Any, ...], k: int) -> Any:
    """Type of the k-th entry of list[T], tuple[T, ...] or tuple[A, B]."""
    return arguments[k] if len(arguments) > 1 and arguments[1] is not Ellipsis else arguments[0]
