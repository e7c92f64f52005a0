"""The numbers in calibration files of data sets."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.io.inputs import insist_on_file, text_lines
from anchor3r.io.tables import rigid_motions
from anchor3r.limits import LIMITS

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_KEY = re.compile(r"^( *)([A-Za-z_]\w*) *:(.*)$")


def yaml_numbers(path: Path, *keys: str, count: int) -> NDArray[np.float64]:
    """The numbers (count,) under nested keys of a YAML file, however its lists are broken into lines."""
    insist_on_file(path, max_bytes=LIMITS.calibration_bytes)
    lines = [line for _, line in text_lines(path, errors="replace")]
    for key in keys:
        lines = _value_of(lines, key)
    numbers = [float(text) for line in lines for text in _NUMBER.findall(line.split("#")[0])]
    if len(numbers) != count or not np.isfinite(numbers).all():
        where = " / ".join(keys)
        raise Anchor3RError(
            f"{path} should have {count} numbers under {where}, has {len(numbers)}; get it again"
        )
    return np.array(numbers)


def _value_of(lines: list[str], key: str) -> list[str]:
    """What stands behind a key and below it, up to the next key that is not deeper."""
    value: list[str] = []
    depth = -1
    for line in lines:
        found = _KEY.match(line)
        if depth >= 0 and found and len(found[1]) <= depth:
            break
        if depth >= 0:
            value.append(line)
        elif found and found[2] == key:
            depth = len(found[1])
            value.append(found[3])
    return value


def yaml_motion(path: Path, *keys: str) -> SE3:
    """The rigid motion of a 4×4 matrix in a YAML file."""
    return rigid_motions(yaml_numbers(path, *keys, count=16).reshape(1, 4, 4)[:, :3], path)[0]
