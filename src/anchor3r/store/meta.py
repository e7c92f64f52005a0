"""What a map says of itself, read as what it has to be: a foreign map may say anything."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any

from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import parse_json
from anchor3r.limits import LIMITS

_Kinds = dict[str, tuple[type, ...]]
_META: _Kinds = {
    "identity": (dict,),
    "store": (dict,),
    "versions": (dict,),
    "loaded_as": (dict, NoneType),
    "camera": (dict, NoneType),
    "num_frames": (int, NoneType),
    "ground_truth_predictor": (bool,),
    "parts": (list,),
}
_INSIDE: dict[str, _Kinds] = {
    "identity": {
        "source": (str,), "start": (int,), "stride": (int,), "predictor": (str,), "window": (int,),
        "camera": (dict, NoneType),
    },
    "store": {"image_quality": (int,), "image_side": (int,), "keep_images": (bool,)},
    "loaded_as": {
        "name": (str,), "window": (int, NoneType), "seed": (int,), "every": (int,), "dtype": (str,),
    },
    "camera": {
        "stated": (bool,), "determined": (bool,), "focal_px": (float,), "focal_sigma_px": (float,),
        "k1": (float,), "k2": (float,), "k1_sigma": (float, NoneType), "k2_sigma": (float, NoneType),
        "path_bend": (float, NoneType),
    },
}  # fmt: skip
_LARGEST = 1e300
_RANGES = {
    "start": (0, LIMITS.frames), "stride": (1, LIMITS.frames), "num_frames": (0, LIMITS.frames),
    "window": (1, LIMITS.window), "every": (1, LIMITS.window), "image_quality": (1, 100),
    "image_side": (1, LIMITS.image_side), "focal_px": (1e-3, 1e9),
}  # fmt: skip


def checked_meta(found: Iterable[tuple[Any, Any]], where: str) -> dict[str, Any]:
    """Rows (key, JSON) of the table meta as what `MapWriter` and `MappingRun` write there.

    where: names the map in errors.
    """
    meta = {str(key): parse_json(text, f"{where}, {key!r}") for key, text in found}
    _insist_on_kinds(meta, _META, where)
    for name, kinds in _INSIDE.items():
        _insist_on_kinds(meta.get(name) or {}, kinds, f"{where}, {name}")
    return meta


def _insist_on_kinds(values: dict[str, Any], kinds: _Kinds, where: str) -> None:
    for name in set(values) & set(kinds):
        value = values[name]
        if float in kinds[name] and isinstance(value, int):
            value = float(value) if abs(value) < _LARGEST else value
        good = isinstance(value, kinds[name]) and (bool in kinds[name] or not isinstance(value, bool))
        if good and value is not None and name in _RANGES:
            good = _RANGES[name][0] <= value <= _RANGES[name][1]
        if not good:
            shown = repr(value)[:60]
            raise Anchor3RError(
                f"{where}: {name} is {shown}, which no map has; restore it from a copy or make the map again"
            )
