"""NetVLAD: both public file layouts give the network of a plain reference, and bad files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from scipy.io import savemat
from torch import Tensor

from anchor3r.errors import Anchor3RError
from anchor3r.loops.descriptors import GRADIENTS, TOKENS, load_descriptor
from anchor3r.loops.netvlad import NetVLADDescriptor

PLACES = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)  # of the convolutions in VGG-16
POOLS = (4, 9, 16, 23)
CHANNELS, WORDS, OUTPUTS = 8, 5, 6
MEAN, STD = (255 * np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
IMAGE = np.random.default_rng(3).integers(0, 256, (48, 64, 3), np.uint8)


def small_tensors() -> dict[str, Tensor]:
    """A random network of VGG-16's layers with few channels, under the names of PyTorch checkpoints."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    tensors, channels = {}, 3
    for place in PLACES:
        tensors[f"encoder.{place}.weight"] = random(CHANNELS, channels, 3, 3, scale=0.25)
        tensors[f"encoder.{place}.bias"] = random(CHANNELS, scale=0.1)
        channels = CHANNELS
    return tensors | {
        "pool.conv.weight": random(WORDS, CHANNELS, 1, 1, scale=3.0),
        "pool.centroids": random(WORDS, CHANNELS, scale=0.3),
        "WPCA.0.weight": random(OUTPUTS, WORDS * CHANNELS, 1, 1),
        "WPCA.0.bias": random(OUTPUTS, scale=0.1),
    }


def reference(tensors: dict[str, Tensor]) -> np.ndarray:
    """The method written out step by step, one word at a time."""
    x = (torch.from_numpy(IMAGE).float() - torch.from_numpy(MEAN)) / torch.from_numpy(STD)
    x = x.permute(2, 0, 1)[None]
    for place in range(29):
        if place in PLACES:
            x = F.conv2d(x, tensors[f"encoder.{place}.weight"], tensors[f"encoder.{place}.bias"], padding=1)
            if place != PLACES[-1]:
                x = x.relu()
        elif place in POOLS:
            x = F.max_pool2d(x, 2)
    local = x[0].flatten(1).T
    local = local / local.norm(dim=1, keepdim=True)
    soft = (local @ tensors["pool.conv.weight"].flatten(1).T).softmax(1)
    words = []
    for word, center in enumerate(tensors["pool.centroids"]):
        residual = (soft[:, word : word + 1] * (local - center)).sum(0)
        words.append(residual / residual.norm())
    vlad = torch.cat(words)
    out = tensors["WPCA.0.weight"].flatten(1) @ (vlad / vlad.norm()) + tensors["WPCA.0.bias"]
    return (out / out.norm()).numpy()


def write_mat(path: Path, tensors: dict[str, Tensor]) -> None:
    """The same network as MatConvNet keeps it: its images are not divided, so the first layer is."""
    layers = np.array([{"type": "other"} for _ in range(34)], object)
    for place in PLACES:
        weight = tensors[f"encoder.{place}.weight"].numpy()
        if place == 0:
            weight = weight / STD[:, None, None]
        layers[place] = {
            "weights": cell(weight.transpose(2, 3, 1, 0), tensors[f"encoder.{place}.bias"].numpy())
        }
    assignment, centers = tensors["pool.conv.weight"].flatten(1).numpy(), tensors["pool.centroids"].numpy()
    layers[30] = {"weights": cell(assignment.T, -centers.T)}
    projection = tensors["WPCA.0.weight"].numpy().reshape(OUTPUTS, WORDS, CHANNELS)
    by_channel = projection.transpose(0, 2, 1).reshape(OUTPUTS, -1)
    layers[33] = {"weights": cell(by_channel.T[None, None], tensors["WPCA.0.bias"].numpy())}
    average = np.broadcast_to(MEAN, (4, 4, 3))
    savemat(path, {"net": {"layers": layers, "meta": {"normalization": {"averageImage": average}}}})


def cell(*arrays: np.ndarray) -> np.ndarray:
    out = np.empty(len(arrays), object)
    out[:] = arrays
    return out


def test_a_pytorch_checkpoint_gives_the_reference(tmp_path: Path) -> None:
    tensors = small_tensors()
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "pitts.pth.tar")
    descriptor = NetVLADDescriptor.load(tmp_path / "pitts.pth.tar")
    assert_allclose(descriptor.describe(IMAGE), reference(tensors), atol=1e-5)
    torch.save(tensors, tmp_path / "bare.pth")
    assert_allclose(
        NetVLADDescriptor.load(tmp_path / "bare.pth").describe(IMAGE), reference(tensors), atol=1e-5
    )


def test_a_matlab_struct_gives_the_reference(tmp_path: Path) -> None:
    tensors = small_tensors()
    write_mat(tmp_path / "Pitts30K_struct.mat", tensors)
    descriptor = load_descriptor(f"netvlad:{tmp_path / 'Pitts30K_struct.mat'}")
    assert descriptor is not None
    assert_allclose(descriptor.describe(IMAGE), reference(tensors), atol=1e-5)


def test_bad_weights_are_refused_by_name(tmp_path: Path) -> None:
    tensors = small_tensors()
    with pytest.raises(Anchor3RError, match="No such file"):
        NetVLADDescriptor.load(tmp_path / "none.mat")
    (tmp_path / "text.mat").write_bytes(b"not a matrix" * 50)
    with pytest.raises(Anchor3RError, match="MATLAB struct"):
        NetVLADDescriptor.load(tmp_path / "text.mat")
    (tmp_path / "text.pth").write_text("no pickle")
    with pytest.raises(Anchor3RError, match="refused"):
        NetVLADDescriptor.load(tmp_path / "text.pth")
    torch.save({k: v for k, v in tensors.items() if "WPCA" not in k}, tmp_path / "short.pth")
    with pytest.raises(Anchor3RError, match=r"no tensor 'WPCA\.0\.weight'"):
        NetVLADDescriptor.load(tmp_path / "short.pth")
    torch.save(tensors | {"pool.centroids": torch.zeros(WORDS, CHANNELS + 1)}, tmp_path / "odd.pth")
    with pytest.raises(Anchor3RError, match=r"centers of NetVLAD should be \(5, 8\), is \(5, 9\)"):
        NetVLADDescriptor.load(tmp_path / "odd.pth")


def test_other_descriptors_by_name() -> None:
    assert load_descriptor(TOKENS) is None
    gradients = load_descriptor(GRADIENTS)
    assert gradients is not None
    same, other = gradients.describe(IMAGE), gradients.describe(np.ascontiguousarray(IMAGE[:, ::-1]))
    assert same.shape == other.shape == gradients.describe(np.zeros((30, 90, 3), np.uint8)).shape
    assert np.linalg.norm(same - other) > 0.1
    with pytest.raises(Anchor3RError, match="no descriptor 'vlad'"):
        load_descriptor("vlad")
