"""Dataclasses from JSON: every field of the type that it is declared with, and none that is not there.

Parse, then trust: what comes out can be used without looking again.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from anchor3r.errors import Anchor3RError

Record = TypeVar("Record")


def record_from_json(kind: type[Record], value: Any, where: str) -> Record:
    """An object of JSON as the dataclass `kind`; `where` names it in errors.

    Lists become tuples where the field is one. What the class itself refuses with a ValueError is told too.
    """
    if not isinstance(value, Mapping):
        raise Anchor3RError(f"{where} should be a JSON object, not {_shown(value)}; write it anew")
    assert dataclasses.is_dataclass(kind)
    hints = get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind) if field.init}
    if unknown := sorted(set(value) - set(known)):
        raise Anchor3RError(f"{where} has {_shown(unknown[0])}, which {kind.__name__} does not know")
    missing = [
        name
        for name, field in known.items()
        if name not in value
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise Anchor3RError(f"{where} lacks {missing[0]!r}; write it anew")
    fields = {name: _typed(hints[name], entry, f"{where}: {name}") for name, entry in value.items()}
    try:
        return kind(**fields)
    except ValueError as error:
        raise Anchor3RError(f"{where}: {error}") from error


def _typed(hint: Any, value: Any, where: str) -> Any:
    """The value as the type says, or an error."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin is Literal:
        return _insist(
            value in arguments and isinstance(value, str | int), value, where, f"one of {arguments}"
        )
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return record_from_json(hint, value, where)
    if origin is tuple:
        return _typed_tuple(arguments, value, where)
    if origin is list:
        _insist(isinstance(value, list), value, where, "a list")
        return [_typed(arguments[0], entry, where) for entry in value]
    if origin in (dict, Mapping):
        _insist(isinstance(value, dict), value, where, "an object")
        return {key: _typed(arguments[1], entry, f"{where}.{key}") for key, entry in value.items()}
    return _typed_scalar(hint, value, where)


def _one_of(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None:
        return _insist(types.NoneType in arguments, value, where, "given")
    options = [option for option in arguments if option is not types.NoneType]
    for option in options[:-1]:
        try:
            return _typed(option, value, where)
        except Anchor3RError:
            continue
    return _typed(options[-1], value, where)


def _typed_tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _insist(isinstance(value, list | tuple), value, where, "a list")
    if arguments[-1] is Ellipsis:
        return tuple(_typed(arguments[0], entry, where) for entry in value)
    _insist(len(value) == len(arguments), value, where, f"{len(arguments)} values")
    return tuple(_typed(hint, entry, where) for hint, entry in zip(arguments, value, strict=True))


def _typed_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        _insist(number and math.isfinite(value), value, where, "a finite number")
        return float(value)
    if hint is int:
        return _insist(isinstance(value, int) and not isinstance(value, bool), value, where, "a whole number")
    if hint in (bool, str):
        return _insist(isinstance(value, hint), value, where, "true or false" if hint is bool else "a text")
    raise TypeError(f"{where}: JSON does not become a {hint}")


def _insist(good: bool, value: Any, where: str, wanted: str) -> Any:
    if not good:
        raise Anchor3RError(f"{where} should be {wanted}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
