"""Where a network's queries look: the share of attention that each frame's queries pay to other frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing
from anchor3r.io.inputs import read_arrays
from anchor3r.sources import Source


def measure_attention(checkpoint: Path, source: Source, num_frames: int) -> NDArray[np.float64]:
    """(L, S, S) of the first frames of a source: at layer l, of frame t (row), to frame i; rows sum to 1."""
    import cv2
    import torch

    from anchor3r.predictors.network.predictor import NetworkPredictorConfig, load_network, network_size

    if not source.seekable:
        raise Anchor3RError(f"{source.uri} is live; attention is measured on images, a video or a world")
    network = load_network(checkpoint)
    wanted = source.wanted
    frames = [source.read(wanted.start + k * wanted.step) for k in range(num_frames)]
    rows, columns = frames[0].image.shape[:2]
    height, width = network_size(rows, columns, network.config, NetworkPredictorConfig())
    images = [cv2.resize(frame.image, (width, height), interpolation=cv2.INTER_AREA) for frame in frames]
    clip = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)[None].float() / 255
    known = [None if f.intrinsics is None else f.intrinsics.resized(width, height) for f in frames]
    cameras = [(c.fx, c.fy, c.cx, c.cy) for c in known if c is not None]
    camera = torch.tensor(cameras)[None].float() if len(cameras) == num_frames else None
    return network.attention_by_frame(clip, camera).numpy().astype(np.float64)


def write_attention(path: Path, shares: Mapping[str, NDArray[np.float64]]) -> None:
    """Keeps the attention of several networks by their names."""
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **shares)


def read_attention(path: Path, layers: Sequence[int] = ()) -> dict[str, NDArray[np.float64]]:
    """(S, S) of each network in the file: the mean over some layers, or over all."""
    if not path.is_file():
        raise Anchor3RError(f"there is no {path}; make it with anchor3r evaluate attention")
    found = read_arrays(path)
    if not found:
        raise Anchor3RError(f"{path} is empty; make it with anchor3r evaluate attention")
    for name, share in found.items():
        square = share.ndim == 3 and share.shape[1] == share.shape[2] and share.size > 0
        if not square or share.dtype.kind != "f" or not _are_shares(share):
            raise Anchor3RError(f"{path}: {name!r} is no attention; make it with anchor3r evaluate attention")
        if layers and not all(0 <= layer < len(share) for layer in layers):
            raise Anchor3RError(f"{path}: {name!r} has {len(share)} layers, from 0 on; choose among them")
    return {name: (share[list(layers)] if layers else share).mean(0) for name, share in found.items()}


def _are_shares(share: NDArray[np.floating]) -> bool:
    """Whether every layer pays some attention, and nothing more than all of it, but for rounding."""
    of_layers = share.max((1, 2))
    return bool(share.min() >= 0 and of_layers.min() > 0 and of_layers.max() <= 1.001)
