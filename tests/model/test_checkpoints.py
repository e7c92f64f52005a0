"""Checkpoints: what is written comes back, and what cannot be trusted or does not fit is named."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from anchor3r.errors import Anchor3RError
from anchor3r.model.checkpoints import load_tensors, read_tensors, save_checkpoint


def small_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))


def test_what_is_saved_comes_back_with_its_config(tmp_path: Path) -> None:
    module, path = small_module(), tmp_path / "deep" / "model.safetensors"
    save_checkpoint(path, module.state_dict(), config='{"dim": 4}')
    tensors, config = read_tensors(path)
    assert config == '{"dim": 4}'
    assert tensors.keys() == module.state_dict().keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in module.state_dict().items())
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


def test_a_module_on_the_meta_device_takes_the_tensors_over() -> None:
    module = small_module()
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    load_tensors(empty, module.state_dict(), source="test")
    x = torch.rand(2, 3)
    torch.testing.assert_close(empty(x), module(x), rtol=0, atol=0)
    assert all(p.requires_grad for p in empty.parameters())


def test_the_module_keeps_its_dtype() -> None:
    module = small_module()
    load_tensors(module, {n: t.half() for n, t in module.state_dict().items()}, source="test")
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_tensors_that_do_not_fit_are_named_with_both_shapes() -> None:
    module = small_module()
    tensors = dict(module.state_dict())
    del tensors["1.bias"]
    tensors["0.weight"] = torch.zeros(5, 3)
    tensors["2.weight"] = torch.zeros(7)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    with pytest.raises(Anchor3RError) as caught:
        load_tensors(module, tensors, source="file.safetensors")
    message = str(caught.value)
    assert message.startswith("file.safetensors: ")
    assert "1.bias: needed with shape (4), missing in the file" in message
    assert "0.weight: needed with shape (4, 3), the file has (5, 3)" in message
    assert "2.weight: the file has it with shape (7), the model has no such tensor" in message
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())


def test_a_long_list_of_misfits_is_cut() -> None:
    with pytest.raises(Anchor3RError, match="and 16 more") as caught:
        load_tensors(nn.Identity(), {f"x{k}": torch.zeros(1) for k in range(20)}, source="file")
    assert "x3:" in str(caught.value)
    assert "x4:" not in str(caught.value)


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
def test_a_foreign_state_dict_is_read(tmp_path: Path, wrapper: str | None) -> None:
    state = small_module().state_dict()
    path = tmp_path / "foreign.pt"
    torch.save(state if wrapper is None else {wrapper: state, "epoch": 3}, path)
    tensors, config = read_tensors(path)
    assert config is None
    assert tensors.keys() == state.keys()


class _Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path, legacy: bool) -> None:
    marker, path = tmp_path / "was-run", tmp_path / "model.pt"
    content = {"weight": torch.zeros(1), "x": _Malicious(marker)}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(Anchor3RError, match="could run code"):
        read_tensors(path)
    path.write_bytes(pickle.dumps(content["x"]))
    with pytest.raises(Anchor3RError, match="could run code"):
        read_tensors(path)
    assert not marker.exists()


def test_damaged_missing_and_unknown_files_are_named(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(64)}, tmp_path / "cut.safetensors")
    torch.save({"x": torch.zeros(64)}, tmp_path / "cut.pt")
    for name in ("cut.safetensors", "cut.pt"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(Anchor3RError, match=f"{name}: damaged"):
            read_tensors(path)
    (tmp_path / "empty.pt").touch()
    with pytest.raises(Anchor3RError, match=r"empty\.pt: damaged"):
        read_tensors(tmp_path / "empty.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(Anchor3RError, match="no state dict"):
        read_tensors(tmp_path / "list.pt")
    with pytest.raises(Anchor3RError, match="No such file"):
        read_tensors(tmp_path / "absent.pt")
    (tmp_path / "model.onnx").touch()
    with pytest.raises(Anchor3RError, match=r"unknown kind of weights '\.onnx'"):
        read_tensors(tmp_path / "model.onnx")


def test_ours_are_written_as_safetensors_only(tmp_path: Path) -> None:
    with pytest.raises(Anchor3RError, match=r"\.safetensors"):
        save_checkpoint(tmp_path / "model.pt", small_module().state_dict(), config="{}")
