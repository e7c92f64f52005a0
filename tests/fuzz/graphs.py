"""Cases of motion graphs: .npz and .g2o."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from case import Check, Recipe
from values import Rng, choice, damaged, draw_damage, draw_text_edits, edited, write

NUMBERS = (0.0, -1.0, 1e-320, 1e30, 1e70, 1e200, 1e308, float("nan"), float("inf"), -1e308, 2.0, 1e9)
DTYPES = ("float32", "int8", "int64", "uint8", "bool", "complex128", "U3", "S2", "M8[s]", "float16", "O")
SHAPES = ("flat", "empty", "one", "scalar", "deep", "transposed", "longer")


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(
        rng, ("g2o", "g2o", "g2o-bytes", "npz", "npz", "npz", "npz-bytes", "npz-header", "bomb", "odd")
    )
    options = choice(rng, (["--loss", "none"], [], ["--method", "decoupled"], ["--method", "paper"]))
    recipe: Recipe = {"class": "graphs", "how": how, "options": options}
    if how == "g2o":
        recipe["edits"] = draw_text_edits(rng, (material / "map.g2o").read_text())
    elif how == "npz":
        with np.load(material / "graph.npz") as graph:
            name = choice(rng, graph.files)
            size = int(graph[name].size)
        kind = choice(rng, ("value", "value", "value", "all", "dtype", "shape", "gone", "zero", "version"))
        recipe |= {
            "column": name, "kind": kind, "at": int(rng.integers(0, max(1, size))), "value": choice(rng, NUMBERS),
            "dtype": choice(rng, DTYPES), "shape": choice(rng, SHAPES),
        }  # fmt: skip
    elif how.endswith("bytes"):
        path = material / ("map.g2o" if how == "g2o-bytes" else "graph.npz")
        recipe["damage"] = draw_damage(rng, path.stat().st_size)
    elif how == "npz-header":
        recipe["header"] = choice(rng, _HEADERS)
    elif how == "odd":
        recipe["odd"] = choice(rng, ("folder.g2o", "fifo.npz", "zero.g2o", "missing.npz", "empty.npz", "empty.g2o",
                                     "text.npz", "name.txt", "npy.npz", "long-line.g2o"))  # fmt: skip
    return recipe


_HEADERS = (
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-5,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (3.5,), }",
    "{'descr': '<f8', 'shape': (3,), }", "", "{", "__import__('os')", "{'descr': '<i99', 'fortran_order': 0, 'shape': ()}",
    "[" * 3000,
)  # fmt: skip


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    how = recipe["how"]
    path = folder / ("in.g2o" if how.startswith("g2o") else "in.npz")
    if how == "g2o":
        write(path, edited((material / "map.g2o").read_text(), recipe["edits"]))
    elif how == "g2o-bytes":
        write(path, damaged((material / "map.g2o").read_bytes(), recipe["damage"]))
    elif how == "npz-bytes":
        write(path, damaged((material / "graph.npz").read_bytes(), recipe["damage"]))
    elif how == "npz":
        _write_changed(path, material / "graph.npz", recipe)
    elif how == "npz-header":
        _write_header(path, material / "graph.npz", recipe["header"])
    elif how == "bomb":
        write_bomb(path, "frame_i.npy")
    else:
        path = make_odd(folder / recipe["odd"])
    return ["solve", str(path.name), "--out", "out.tum", *recipe["options"]], check_numbers


def check_numbers(code: int, folder: Path) -> str | None:
    """What was written with exit code 0 can be read, and is finite."""
    if code:
        return None
    values = np.loadtxt(folder / "out.tum", comments="#", ndmin=2)
    return None if values.size and np.isfinite(values).all() else "wrong: poses that are no numbers"


def _write_changed(path: Path, graph: Path, recipe: Recipe) -> None:
    with np.load(graph) as archive:
        columns: dict[str, Any] = {name: archive[name] for name in archive.files}
    name, kind = recipe["column"], recipe["kind"]
    column = columns[name].copy()
    with np.errstate(all="ignore"):
        if kind in ("value", "all"):
            where = slice(None) if kind == "all" else recipe["at"]
            column.reshape(-1)[where] = np.array(recipe["value"]).astype(column.dtype)
        elif kind == "dtype":
            column = column.astype(recipe["dtype"], casting="unsafe") if recipe["dtype"] != "M8[s]" else (
                np.zeros(column.shape, "M8[s]"))  # fmt: skip
        elif kind == "zero":
            column = np.zeros_like(column)
        elif kind == "shape":
            column = _reshaped(column, recipe["shape"])
    columns[name] = column
    if kind == "gone":
        del columns[name]
    if kind == "version":
        columns["format_version"] = np.array([1, 2])
    np.savez(path, **columns)


def _reshaped(column: Any, shape: str) -> Any:
    return {
        "flat": column.reshape(-1), "empty": column[:0] if column.ndim else column.reshape(-1)[:0],
        "one": column[:1] if column.ndim else column.reshape(1), "scalar": np.array(1),
        "deep": column[(None,) * 20], "transposed": column.T, "longer": np.concatenate([column.reshape(-1)] * 2),
    }[shape]  # fmt: skip


def _write_header(path: Path, graph: Path, header: str) -> None:
    text = header.encode()
    block = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + b"\x00" * 64
    with zipfile.ZipFile(graph) as source, zipfile.ZipFile(path, "w") as out:
        for name in source.namelist():
            out.writestr(name, block if name == "frame_i.npy" else source.read(name))


def write_bomb(path: Path, member: str) -> None:
    """A small archive that says it holds eight gigabytes, and does."""
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(
        header, {"descr": "<i8", "fortran_order": False, "shape": (1 << 30,)}
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out,
        out.open(member, "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(8):
            file.write(bytes(1 << 20))  # the rest is declared alone
    data = bytearray(path.read_bytes())
    path.write_bytes(data)


def make_odd(path: Path) -> Path:
    """Something of that name that is no ordinary good file."""
    import os

    stem = path.name.split(".")[0]
    if stem == "folder":
        path.mkdir()
    elif stem == "fifo":
        os.mkfifo(path)
    elif stem == "zero":
        path.symlink_to("/dev/zero")
    elif stem == "empty":
        path.touch()
    elif stem == "text":
        path.write_text("hello\n")
    elif stem == "npy":
        with open(path, "wb") as file:
            np.save(file, np.zeros(3))
    elif stem == "long-line":
        path.write_text("EDGE_SE3:QUAT " + "1 " * 3_000_000)
    elif stem == "name":
        path.write_text("1 2 3\n")
    return path
