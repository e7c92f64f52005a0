"""NetVLAD place descriptors: VGG-16 up to conv5_3, soft assignment to visual words, projection by PCA.

Reads the two public kinds of weights trained on Pittsburgh: MatConvNet's as a MATLAB struct (.mat), and
PyTorch checkpoints (.pth, .pth.tar) with the tensors `encoder.N`, `pool.conv`, `pool.centroids` and `WPCA.0`.
They differ in the order of the aggregated vector (word within channel, or channel within word) and in what is
subtracted from an image; both become the same module. Arandjelović et al., CVPR 2016.

Shapes: B images, D channels, K words, N image positions, P outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import DAMAGED, insist_on_file
from anchor3r.model.checkpoints import load_pickle

_POOL = 0  # among the widths below: halve the image
_VGG16 = (64, 64, _POOL, 128, 128, _POOL, 256, 256, 256, _POOL, 512, 512, 512, _POOL, 512, 512, 512)
_MAT_NETVLAD, _MAT_PCA = 30, 33  # places among the MATLAB network's layers
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LONG_SIDE = 640  # larger images are reduced; training used 640 × 480


@dataclass(frozen=True)
class Weights:
    """A weight file's content in the module's layout."""

    convolutions: list[tuple[Tensor, Tensor]]
    """(out, in, 3, 3) and (out,) of each"""
    assignment: Tensor
    """(K, D)"""
    centers: Tensor
    """(K, D)"""
    projection: Tensor
    """(P, K D), of vectors that go through the channels of one word before the next word's"""
    projection_bias: Tensor
    """(P,)"""
    mean: tuple[float, float, float]
    """Of RGB, 0 to 255."""
    std: tuple[float, float, float]


class NetVLAD(nn.Module):
    """Images to unit vectors."""

    mean: Tensor
    std: Tensor

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.backbone = _backbone(weights.convolutions)
        self.assignment = nn.Parameter(weights.assignment)
        self.centers = nn.Parameter(weights.centers)
        self.projection = nn.Parameter(weights.projection)
        self.projection_bias = nn.Parameter(weights.projection_bias)
        self.register_buffer("mean", torch.tensor(weights.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(weights.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB, 0 to 255 -> (B, P)"""
        features = self.backbone((images - self.mean) / self.std)
        local = F.normalize(features.flatten(2), dim=1)  # (B, D, N)
        weight = (self.assignment @ local).softmax(1)  # (B, K, N)
        # Σ w (x - c) without the (K, D, N) differences.
        aggregated = weight @ local.transpose(1, 2) - weight.sum(2, keepdim=True) * self.centers
        words = F.normalize(aggregated, dim=2).flatten(1)  # (B, K D)
        return F.normalize(F.linear(F.normalize(words), self.projection, self.projection_bias))


class NetVLADDescriptor:
    """NetVLAD as a place descriptor."""

    def __init__(self, network: NetVLAD, *, name: str) -> None:
        self._network = network.eval().requires_grad_(False)
        self.name = name

    @staticmethod
    def load(path: Path) -> NetVLADDescriptor:
        """From one of the public weight files."""
        return NetVLADDescriptor(NetVLAD(read_weights(path)), name=f"netvlad:{path}")

    def describe(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(H, W, 3) RGB -> (P,)"""
        height, width = image.shape[:2]
        shrink = min(1.0, _LONG_SIDE / max(height, width))
        size = max(16, round(width * shrink)), max(16, round(height * shrink))
        pixels = np.array(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR), np.float32)
        with torch.inference_mode():
            return self._network(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0].numpy()


def read_weights(path: Path) -> Weights:
    """Reads a .mat or .pth file; refuses anything else by what is wrong with it."""
    insist_on_file(path)
    weights = _from_mat(path) if path.suffix == ".mat" else _from_pickle(path)
    _check(path, weights)
    return weights


def _backbone(convolutions: list[tuple[Tensor, Tensor]]) -> nn.Sequential:
    """VGG-16's layers up to the last convolution, which has no ReLU after it."""
    layers: list[nn.Module] = []
    given = iter(convolutions)
    for width in _VGG16:
        if width == _POOL:
            layers.append(nn.MaxPool2d(2, 2))
            continue
        weight, bias = next(given)
        convolution = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1)
        convolution.weight, convolution.bias = nn.Parameter(weight), nn.Parameter(bias)
        layers += [convolution, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _layer_places() -> list[int]:
    """Places of the convolutions among VGG-16's layers, where each has a ReLU after it."""
    places, place = [], 0
    for width in _VGG16:
        if width == _POOL:
            place += 1
            continue
        places.append(place)
        place += 2
    return places


def _from_mat(path: Path) -> Weights:
    """MatConvNet: convolutions (h, w, in, out), words in columns, centres negated, channel before word."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        net = loadmat(path, struct_as_record=False, squeeze_me=True)["net"]
        layers = net.layers
        convolutions = [
            (_tensor(layers[k].weights[0]).permute(3, 2, 0, 1).contiguous(), _tensor(layers[k].weights[1]))
            for k in _layer_places()
        ]
        assignment, negated = (_tensor(w).T.contiguous() for w in layers[_MAT_NETVLAD].weights[:2])
        projection, bias = (_tensor(w).squeeze() for w in layers[_MAT_PCA].weights[:2])
        red, green, blue = np.reshape(net.meta.normalization.averageImage, (-1, 3))[0].tolist()
    except (*DAMAGED, MatReadError) as error:
        raise Anchor3RError(f"{path}: not the NetVLAD network as a MATLAB struct ({error})") from error
    if assignment.ndim != 2 or projection.ndim != 2 or projection.shape[0] != assignment.numel():
        raise Anchor3RError(f"{path}: not the NetVLAD network: its last layers do not fit together")
    words, channels = assignment.shape
    by_word = projection.T.reshape(-1, channels, words).transpose(1, 2).reshape(-1, words * channels)
    return Weights(
        convolutions, assignment, -negated, by_word.contiguous(), bias, (red, green, blue), (1.0, 1.0, 1.0)
    )


def _from_pickle(path: Path) -> Weights:
    """PyTorch: (out, in, h, w), word before channel; images are normalised as for ImageNet."""
    content = load_pickle(path)
    tensors = content.get("state_dict", content) if isinstance(content, Mapping) else {}
    try:
        convolutions = [
            (tensors[f"encoder.{k}.weight"].float(), tensors[f"encoder.{k}.bias"].float())
            for k in _layer_places()
        ]
        assignment, projection = tensors["pool.conv.weight"].float(), tensors["WPCA.0.weight"].float()
        centers, bias = tensors["pool.centroids"].float(), tensors["WPCA.0.bias"].float()
        assignment, projection = assignment.flatten(1), projection.flatten(1)
    except (LookupError, AttributeError, RuntimeError) as error:
        raise Anchor3RError(
            f"{path}: holds no tensor {error}; NetVLAD with PCA has encoder.N, pool.conv, pool.centroids "
            "and WPCA.0"
        ) from error
    mean, std = ((255 * r, 255 * g, 255 * b) for r, g, b in (_IMAGENET_MEAN, _IMAGENET_STD))
    return Weights(convolutions, assignment, centers, projection, bias, mean, std)


def _check(path: Path, weights: Weights) -> None:
    """Shapes must fit together; widths may differ from VGG-16's."""
    channels = 3
    if weights.projection_bias.ndim != 1 or weights.assignment.ndim != 2:
        raise Anchor3RError(f"{path}: not the NetVLAD network: its last layers have other shapes")
    for weight, bias in weights.convolutions:
        if weight.shape[1:] != (channels, 3, 3) or bias.shape != weight.shape[:1]:
            raise Anchor3RError(f"{path}: a convolution has the shape {tuple(weight.shape)}, not VGG-16's")
        channels = weight.shape[0]
    words = weights.assignment.shape[0]
    expected = {
        "assignment": (words, channels),
        "centers": (words, channels),
        "projection": (len(weights.projection_bias), words * channels),
    }
    for name, shape in expected.items():
        if tuple(getattr(weights, name).shape) != shape:
            found = tuple(getattr(weights, name).shape)
            raise Anchor3RError(f"{path}: the {name} of NetVLAD should be {shape}, is {found}")


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.array(values, np.float32))
