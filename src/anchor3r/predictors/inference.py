"""What any network needs to run: a device, a precision, memory, and images of a size that it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.predictors.interface import Dtype

_MEMINFO = Path("/proc/meminfo")
_MIN_FOV_RAD, _MAX_FOV_RAD = 0.02, 3.0
"""Fields of view beyond these are no camera's but a network's that is lost; the points stay finite."""


def choose_device(name: str = "auto") -> torch.device:
    """The device of a name such as cuda, cuda:1 or cpu; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Anchor3RError(f"there is no device {name!r}; choose auto, cpu, cuda or cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU"
        raise Anchor3RError(f"device {name} was asked for, but PyTorch sees {found}; choose --device cpu")
    return device


def choose_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """ "auto" is bfloat16 on a GPU that computes in it, float32 elsewhere."""
    if dtype == "auto":
        fits = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fits else torch.float32
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """torch.bfloat16 -> "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def backbone_precision(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Inside, matrix products are in `dtype`; heads go back to float32 by themselves."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype is torch.bfloat16)


def require_memory(num_bytes: int, device: torch.device, purpose: str) -> None:
    """Raises an error that says how much is needed if that much is not free on the device."""
    free = _free_bytes(device)
    if free is not None and num_bytes > free:
        raise Anchor3RError(
            f"{purpose} needs {num_bytes / 2**30:.2f} GiB, but {free / 2**30:.2f} GiB are free on {device}; "
            "choose --dtype bfloat16, a smaller --window, another --device, or a smaller network"
        )


def _free_bytes(device: torch.device) -> int | None:
    """None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu" or not _MEMINFO.is_file():
        return None
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return 1024 * int(fields["MemAvailable"].split()[0]) if "MemAvailable" in fields else None


def patch_aligned_size(height: int, width: int, *, long_side: int, patch_size: int) -> tuple[int, int]:
    """Height and width with sides that are multiples of the patch, the longer one at most `long_side`."""
    if long_side < patch_size:
        raise ValueError(f"a longer side of {long_side} pixels holds no patch of {patch_size}")
    largest = long_side // patch_size
    scale = largest / max(height, width)
    rows, columns = (min(max(round(side * scale), 1), largest) for side in (height, width))
    return rows * patch_size, columns * patch_size


def fit_to_patches(image: NDArray[np.uint8], *, long_side: int, patch_size: int) -> NDArray[np.uint8]:
    """Resamples (H, W, 3) bicubically to `patch_aligned_size`; nothing is cropped."""
    height, width = patch_aligned_size(*image.shape[:2], long_side=long_side, patch_size=patch_size)
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def camera_from_fov(vertical_rad: float, horizontal_rad: float, height: int, width: int) -> Pinhole:
    """The camera that sees these angles, its principal point in the middle of the image."""
    tan_v, tan_h = np.tan(np.clip([vertical_rad, horizontal_rad], _MIN_FOV_RAD, _MAX_FOV_RAD) / 2)
    return Pinhole(
        float(width / 2 / tan_h), float(height / 2 / tan_v), (width - 1) / 2, (height - 1) / 2, width, height
    )
