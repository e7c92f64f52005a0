"""Weights on disk: ours as safetensors with the config in the metadata, others' also as plain `.pt`.

Nothing read here can run code: safetensors holds numbers alone, and of a pickle only tensors are let in.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import check_output
from anchor3r.io.inputs import DAMAGED, insist_on_file

PICKLE_SUFFIXES = (".pt", ".pth", ".bin")
"""What PyTorch's own format goes by."""


def save_checkpoint(path: Path | str, tensors: Mapping[str, Tensor], *, config: str) -> None:
    """Writes tensors by name and the config (JSON) of their model; a crash leaves the former file whole."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise Anchor3RError(f"{path}: weights are written as .safetensors; give the file that suffix")
    contiguous = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    check_output(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In a folder that nobody else knows: the library writes to a name, and bytes of it all may not fit.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as own:
            save_file(contiguous, Path(own) / path.name, metadata={"config": config})
            os.replace(Path(own) / path.name, path)
    except (OSError, SafetensorError) as error:
        raise Anchor3RError(f"cannot write {path} ({error}); choose another place") from error


def read_tensors(path: Path | str) -> tuple[dict[str, Tensor], str | None]:
    """A file's tensors by name, on the CPU, and its config (JSON) if it has one."""
    path = insist_on_file(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in PICKLE_SUFFIXES:
        return _read_pickle(path), None
    raise Anchor3RError(
        f"{path}: unknown kind of weights {path.suffix!r}; "
        f"known are .safetensors, {', '.join(PICKLE_SUFFIXES)}"
    )


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Puts tensors into a module by name; every name and shape has to fit.

    The module keeps its dtypes; one that was built on the meta device takes the tensors over without a copy.
    """
    insist_on_fitting(module, tensors, source=source)
    expected = module.state_dict()
    on_meta = any(tensor.is_meta for tensor in expected.values())
    fitting = {name: tensor.to(expected[name].dtype) for name, tensor in tensors.items()}
    module.load_state_dict(fitting, assign=on_meta)


def insist_on_fitting(module: nn.Module, tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Refuses tensors whose names and shapes are not those of the module, which may be without memory."""
    if problems := _misfits(module.state_dict(), tensors):
        raise Anchor3RError(f"{source}: these weights are of another model: " + "; ".join(problems))


def file_digest(path: Path | str) -> str:
    """By which a file of weights is known again: another training under the same name has another one."""
    status = os.stat(path)
    return _digest(str(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _digest(path: str, _size: int, _mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _misfits(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """What is wrong, a line each, the first few of every kind."""
    misshapen = [
        f"{name}: needed with shape {_shape(tensor)}, the file has {_shape(found[name])}"
        for name, tensor in expected.items()
        if name in found and tensor.shape != found[name].shape
    ]
    missing = [
        f"{name}: needed with shape {_shape(tensor)}, missing in the file"
        for name, tensor in expected.items()
        if name not in found
    ]
    unexpected = [
        f"{name}: the file has it with shape {_shape(tensor)}, the model has no such tensor"
        for name, tensor in found.items()
        if name not in expected
    ]
    lines = []
    for kind in (misshapen, missing, unexpected):
        lines += kind[:4] + ([f"and {len(kind) - 4} more like these"] if len(kind) > 4 else [])
    return lines


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], str | None]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            config = (file.metadata() or {}).get("config")
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, config
    except (SafetensorError, *DAMAGED) as error:
        raise Anchor3RError(f"{path}: damaged or no safetensors file ({error}); fetch it again") from error


def load_pickle(path: Path | str) -> Any:
    """What a file of PyTorch's own format holds: numbers, texts and containers of them, never code.

    Such files are not compressed; one that says it unpacks to more than it has bytes was made to fill memory.
    """
    path = insist_on_file(path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > path.stat().st_size:
                raise ValueError(f"{unpacked:,} bytes unpacked, which PyTorch does not write")
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Anchor3RError(
            f"{path}: refused, since opening it could run code: it holds more than tensors "
            f"({(str(error).splitlines() or [''])[0]}). Ask its author for safetensors, or for a plain state "
            "dict."
        ) from error
    except (SafetensorError, *DAMAGED) as error:  # torch reads some safetensors of the wrong name by itself
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Anchor3RError(f"{path}: damaged or no PyTorch file ({reason}); fetch it again") from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    content = load_pickle(path)
    for wrapper in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise Anchor3RError(f"{path}: holds no state dict; a mapping of names to tensors is needed")
    return content


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
