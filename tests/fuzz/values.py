"""Values that programs do not expect, and damage to bytes and texts; all drawn from a seeded generator."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator

NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "-0", "1e9", "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "1000000",
    "99999999999999999999", "-99999999999999999999", "4294967296", "2147483648", "9223372036854775807", "0x10",
    "1_000", "1,2", "", " ", "one", "½", "١٢", "1e999", "+5", "5.", ".5", "--", "0.0001", "1024", "65536",
)  # fmt: skip
TEXTS = (
    "", " ", ".", "..", "/", "//", "~", "-", "--", "a", "<script>alert(1)</script>", "a\nb", "a\tb", "\x1b[31m",
    "%s%n", "{0}", "$HOME", "`id`", "';DROP TABLE frames;--", "😀", "é" * 40, "x" * 5000, "$\\frac{$", "\udcff", "CON", "a:b", "a|b",
    "file:///etc/passwd", "http://127.0.0.1:1/x", "rtsp://u:p@127.0.0.1:1/x", "camera:99", "world:1", "world:",
    "kitti:", "tum:", "7scenes:", "map:", "vggt:", "netvlad:", "ground-truth:x", "ground-truth:nan,nan",
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**6, 10**9, 10**30, -(10**30), 0.5, -0.5, 1e308, float("nan"), float("inf"),
    "", "x", "<script>", "1", "\ud800", "a|b\n9 0 0", "../../x", [], [1], [1, 2, 3], [[]], {}, {"a": 1}, [None], ["a"], [1e308, 1e308],
)  # fmt: skip
SQL_VALUES: tuple[Any, ...] = (
    None, 0, 1, -1, 5, 10**6, 2**62, -(2**62), 0.0, 0.5, -1.5, 1e308, -1e308, "", "x", "<script>alert(1)</script>",
    "null", "{}", "[]", "[1]", '"a"', "1e999", "[" * 5000, '{"a":' * 2000, b"", b"\x00", b"\xff" * 8, b"\x00" * 96,
    b"\xff" * 96, b"\x7f" * 288, "online", "offline", "lost", "ok",
)  # fmt: skip


def choice(rng: Rng, options: Any) -> Any:
    """One of a sequence, unchanged by numpy."""
    return options[int(rng.integers(len(options)))]


def draw_damage(rng: Rng, size: int) -> list[list[Any]]:
    """A few operations on the bytes of a file of that size, as JSON."""
    operations: list[list[Any]] = []
    for _ in range(int(rng.integers(1, 4))):
        kind = choice(rng, ("flip", "flip", "fill", "cut", "drop", "insert", "copy"))
        at = int(rng.integers(0, max(1, size)))
        if rng.random() < 0.4:
            at = min(at, int(rng.integers(0, 200)))
        count = int(rng.integers(1, 64))
        operations.append([kind, at, count, int(rng.integers(0, 256))])
    return operations


def damaged(data: bytes, operations: list[list[Any]]) -> bytes:
    """The bytes after those operations."""
    content = bytearray(data)
    for kind, at, count, value in operations:
        at = min(at, len(content))
        if kind == "flip":
            for k in range(at, min(at + 1 + count // 32, len(content))):
                content[k] ^= value or 1
        elif kind == "fill":
            content[at : at + count] = bytes([value]) * len(content[at : at + count])
        elif kind == "cut":
            del content[at:]
        elif kind == "drop":
            del content[at : at + count]
        elif kind == "insert":
            content[at:at] = bytes([value]) * count
        else:
            content[at:at] = content[: count * 8]
    return bytes(content)


def draw_text_edits(rng: Rng, text: str) -> list[list[Any]]:
    """A few edits of words and lines of a text, as JSON."""
    lines = text.splitlines() or [""]
    edits: list[list[Any]] = []
    for _ in range(int(rng.integers(1, 4))):
        line = int(rng.integers(len(lines)))
        words = max(1, len(lines[line].replace(",", " ").split()))
        kind = choice(rng, ("word", "word", "word", "word", "delete", "repeat", "swap", "append", "blank"))
        value = choice(rng, NUMBERS if rng.random() < 0.8 else TEXTS)
        edits.append([kind, line, int(rng.integers(words)), value])
    return edits


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


def draw_number_edits(rng: Rng, text: str) -> list[list[Any]]:
    """A few numbers of a text and what to write in their places, as JSON."""
    count = max(1, len(_NUMBER.findall(text)))
    return [
        ["number", int(rng.integers(count)), 0, choice(rng, NUMBERS)] for _ in range(int(rng.integers(1, 3)))
    ]


def _with_number(text: str, at: int, value: str) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    start, stop = found[at % len(found)].span()
    return text[:start] + value + text[stop:]


def edited(text: str, edits: list[list[Any]]) -> str:
    """The text after those edits."""
    for kind, at, _, value in edits:
        if kind == "number":
            text = _with_number(text, at, value)
    edits = [edit for edit in edits if edit[0] != "number"]
    if not edits:
        return text
    lines = text.splitlines()
    for kind, line, word, value in edits:
        if not lines:
            break
        line %= len(lines)
        separator = "," if "," in lines[line] else " "
        words = lines[line].split(separator)
        if kind == "word":
            words[word % len(words)] = value
            lines[line] = separator.join(words)
        elif kind == "delete":
            del lines[line]
        elif kind == "repeat":
            lines[line:line] = [lines[line]] * (1 + word)
        elif kind == "swap":
            lines[line], lines[0] = lines[0], lines[line]
        elif kind == "append":
            lines[line] += f"{separator}{value}"
        else:
            lines[line] = value
    return "\n".join(lines) + "\n"


def draw_path(rng: Rng, content: Any) -> list[Any]:
    """A way into a JSON value."""
    path: list[Any] = []
    while isinstance(content, dict | list) and content and (not path or rng.random() < 0.75):
        key = choice(rng, list(content)) if isinstance(content, dict) else int(rng.integers(len(content)))
        path.append(key)
        content = content[key]
    return path


def replaced(content: Any, path: list[Any], value: Any) -> Any:
    """A JSON value with another one at the end of that way; without it if the value is "<gone>"."""
    content = json.loads(json.dumps(content))
    if not path:
        return value
    place = content
    for key in path[:-1]:
        place = place[key]
    if value == "<gone>":
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    return path
