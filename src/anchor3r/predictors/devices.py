"""Where a predictor's network runs, in which precision, and whether it fits there."""

from __future__ import annotations

from pathlib import Path

import torch

from anchor3r.errors import Anchor3RError
from anchor3r.predictors.interface import Dtype

_MEMINFO = Path("/proc/meminfo")


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
