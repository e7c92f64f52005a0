"""How data sets store depth: 16-bit images, halves in images, PFM, EXR, HDF5, NumPy files."""

from __future__ import annotations

import io
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.datasets.files import Files
from anchor3r.io.extras import data_library
from anchor3r.kernels import Array, kernel
from anchor3r.sources.images import DECODING_ERRORS
from anchor3r.sources.source import UndecodableFrameError

_HDF5 = Lock()
"""HDF5 that reads through a Python file must not run in two threads at once: each may wait for the other."""


def png16(files: Files, name: str) -> NDArray[np.uint16]:
    """(H, W) of a 16-bit image with one channel."""
    try:
        with files.open(name) as file, Image.open(file) as image:
            if not image.mode.startswith("I"):
                raise ValueError(f"it should have one 16-bit channel, but has mode {image.mode}")
            return np.asarray(image).astype(np.uint16, copy=False)
    except DECODING_ERRORS as error:
        raise _undecodable(files, name, error) from error


def metres(units: NDArray[np.uint16], units_per_m: float, invalid: int = 0) -> NDArray[np.float32]:
    """(H, W) depth that is stored in whole units; 0 and the value `invalid` become 0, unknown."""
    out = np.empty(units.shape, np.float32)
    _convert(units.ravel(), np.float32(units_per_m), invalid, out.ravel())
    return out


@kernel
def _convert(units: Array, units_per_m: Any, invalid: int, out: Array) -> None:
    """One pass over the image instead of numpy's three."""
    for k in range(len(units)):
        out[k] = np.float32(0) if units[k] == invalid else np.float32(units[k]) / units_per_m


def mask(files: Files, name: str) -> NDArray[np.bool_]:
    """(H, W) where an image with one channel is not 0."""
    try:
        with files.open(name) as file, Image.open(file) as image:
            return np.asarray(image.convert("L")) > 0
    except DECODING_ERRORS as error:
        raise _undecodable(files, name, error) from error


def npy(files: Files, name: str) -> NDArray[Any]:
    try:
        return np.load(io.BytesIO(files.read(name)), allow_pickle=False)
    except DECODING_ERRORS as error:
        raise _undecodable(files, name, error) from error


def hdf5(files: Files, name: str, key: str) -> NDArray[Any]:
    """One data set of an HDF5 file."""
    h5py = data_library("h5py")
    try:
        with files.open(name) as file, _HDF5, h5py.File(file, "r") as content:
            return np.asarray(content[key])
    except (*DECODING_ERRORS, KeyError) as error:
        raise _undecodable(files, name, error) from error


def exr(files: Files, name: str) -> NDArray[np.float32]:
    """(H, W) the first channel of an OpenEXR file."""
    library = data_library("OpenEXR")
    try:
        with files.open(name) as file, library.File(file, separate_channels=True) as content:
            return np.array(next(iter(content.channels().values())).pixels, np.float32)
    except (*DECODING_ERRORS, StopIteration) as error:
        raise _undecodable(files, name, error) from error


def pfm(files: Files, name: str) -> NDArray[np.float32]:
    """(H, W) of a portable float map with one channel, whose rows are stored from the bottom."""
    data = files.read(name)
    try:
        kind, width, height, scale = data.split(maxsplit=4)[:4]
        if kind != b"Pf":
            raise ValueError("it is no portable float map with one channel")
        values = np.frombuffer(data[-4 * int(width) * int(height) :], "<f4" if float(scale) < 0 else ">f4")
        return np.flipud(values.reshape(int(height), int(width))).astype(np.float32)
    except ValueError as error:
        raise _undecodable(files, name, error) from error


def _undecodable(files: Files, name: str, error: Exception) -> UndecodableFrameError:
    return UndecodableFrameError(
        f"cannot decode {files.root / name} ({error}); replace the file or remove it"
    )
