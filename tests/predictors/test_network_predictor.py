"""The network as a predictor: windows, order of members, snapshots, sizes, bad checkpoints."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole, quat_from_rotation
from anchor3r.model.cache import ImageCache
from anchor3r.model.checkpoints import file_digest, save_checkpoint
from anchor3r.model.config import PRESETS, MatchingConfig, shrunk
from anchor3r.model.network import Anchor3RNetwork, WindowOutput
from anchor3r.pipeline.mapper import Mapper
from anchor3r.predictors.network.predictor import NetworkPredictor, NetworkPredictorConfig, network_size
from anchor3r.predictors.network.window_estimation import WindowEstimationConfig
from anchor3r.sources.frame import Frame

CAMERA = Pinhole.from_fov(70, 64, 48)


def make_network(preset: str = "tiny", window: int = 4) -> Anchor3RNetwork:
    torch.manual_seed(0)
    changes: dict[str, object] = {"window": window}
    if preset == "tiny":
        changes["matching"] = MatchingConfig(
            channels=(8, 12, 16), coarse_dim=16, fine_dim=8, hidden=16, area=48 * 64
        )
    return Anchor3RNetwork(shrunk(PRESETS[preset], **changes)).eval()


def predictor(preset: str = "tiny", window: int = 4) -> NetworkPredictor:
    config = NetworkPredictorConfig(long_side=56)
    return NetworkPredictor(make_network(preset, window), name="test", config=config, device="cpu")


def frames(count: int, *, known: bool = True, seed: int = 0) -> list[Frame]:
    rng = np.random.default_rng(seed)
    return [
        Frame(
            index=3 * k,
            timestamp_s=0.1 * k,
            image=rng.integers(0, 256, (48, 64, 3), dtype=np.uint8),
            intrinsics=CAMERA if known else None,
        )
        for k in range(count)
    ]


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_windows_name_the_right_frames(preset: str) -> None:
    measured = [predictor_step for p in [predictor(preset)] for predictor_step in map(p.step, frames(7))]
    for k, prediction in enumerate(measured):
        assert prediction.anchor == 3 * k
        recent = [3 * j for j in range(max(0, k - 3), k)]
        keyframes = [3 * j for j in range(0, max(0, k - 3), WindowEstimationConfig().keyframe_interval)]
        older = prediction.members[: len(prediction.members) - len(recent)].tolist()
        assert prediction.members.tolist() == older + recent
        assert set(older) <= set(keyframes if preset == "tiny" else [])
        assert np.allclose(np.linalg.det(prediction.member_from_anchor_rotation), 1)
        assert np.isfinite(prediction.member_from_anchor_translation).all()
        assert prediction.points_in_anchor is not None
        assert prediction.points_in_anchor.shape[:2] == prediction.points_confidence.shape


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_a_restored_predictor_goes_on_bit_for_bit(preset: str) -> None:
    stream = frames(8)
    first = predictor(preset)
    for frame in stream[:5]:
        first.step(frame)
    state = {name: np.array(value) for name, value in first.snapshot().items()}
    second = predictor(preset)
    second.restore(state)
    for frame in stream[5:]:
        a, b = first.step(frame), second.step(frame)
        assert np.array_equal(a.member_from_anchor_translation, b.member_from_anchor_translation)
        assert np.array_equal(a.points_in_anchor, b.points_in_anchor)
        assert a.log_scale_ratio == b.log_scale_ratio


def test_relate_leaves_the_stream_alone() -> None:
    stream, elsewhere = frames(6), frames(3, seed=9)
    first, second = predictor(), predictor()
    for frame in stream[:5]:
        first.step(frame)
        second.step(frame)
    related = first.relate(elsewhere[:2], elsewhere[2])
    assert related.members.tolist() == [0, 3]
    a, b = first.step(stream[5]), second.step(stream[5])
    assert np.array_equal(a.member_from_anchor_translation, b.member_from_anchor_translation)
    with pytest.raises(ValueError, match="1 to 3 members, not 4"):
        first.relate(stream[:4], stream[4])


def test_places_are_looked_at_once_and_not_mistaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a place changes no result; other pictures under the same numbers are another place."""
    shown, other = frames(7), frames(3, seed=9)
    steady, fresh = predictor(), [predictor() for _ in range(3)]
    steps: list[int] = []
    advance = NetworkPredictor._advance
    monkeypatch.setattr(
        NetworkPredictor, "_advance", lambda p, s, f: steps.append(f.index) or advance(p, s, f)
    )
    for members, anchor in ((shown[:3], shown[4]), (shown[:3], shown[6]), (other, shown[4])):
        steps.clear()
        found = steady.relate(members, anchor)
        assert steps == ([18] if anchor is shown[6] else [0, 3, 6, 12])
        expected = fresh.pop().relate(members, anchor)
        assert np.array_equal(found.member_from_anchor_translation, expected.member_from_anchor_translation)
        assert np.array_equal(found.points_in_anchor, expected.points_in_anchor)  # type: ignore[arg-type]


def test_unknown_intrinsics_are_estimated_and_reported() -> None:
    measured = [step for p in [predictor()] for step in map(p.step, frames(3, known=False))]
    assert measured[-1].intrinsics is not None
    assert (measured[-1].intrinsics.width, measured[-1].intrinsics.height) == (64, 48)
    known = [step for p in [predictor()] for step in map(p.step, frames(3))]
    assert known[-1].intrinsics == CAMERA


def test_covariances_are_proper() -> None:
    measured = [step for p in [predictor()] for step in map(p.step, frames(4))]
    covariance = measured[-1].covariance
    assert covariance is not None
    assert covariance.shape == (3, 6, 6)
    assert (np.linalg.eigvalsh(covariance) > 0).all()
    # A window's scale is never sure, however many matches there are: lengths are known to 5 % at best.
    turned = np.swapaxes(measured[-1].member_from_anchor_rotation, 1, 2)
    moved = (turned @ measured[-1].member_from_anchor_translation[..., None])[..., 0]
    along = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    variance = np.einsum("ni,nij,nj->n", along, covariance[:, 3:, 3:], along)
    assert (np.sqrt(variance) > 0.05 * np.linalg.norm(moved, axis=1)).all()


@pytest.mark.parametrize(
    ("frame_size", "aspect"),
    [((480, 640), 4 / 3), ((376, 1241), 3.3), ((720, 1280), 16 / 9), ((640, 480), 0.75)],
)
def test_sizes_follow_the_aspect_ratio(frame_size: tuple[int, int], aspect: float) -> None:
    height, width = network_size(*frame_size, PRESETS["tiny"], NetworkPredictorConfig())
    assert height % 16 == 0
    assert width % 16 == 0
    assert abs(np.log(width / height / aspect)) < 0.12
    assert 9_000 < height * width < 17_000


def test_half_precision_halves_the_cache_and_says_nearly_the_same() -> None:
    stream = frames(5)
    exact, half = (
        NetworkPredictor(
            make_network("small"), name="test", config=NetworkPredictorConfig(long_side=56), dtype=dtype
        )
        for dtype in ("float32", "bfloat16")
    )
    for frame in stream:
        a, b = exact.step(frame), half.step(frame)
    assert half.settings["dtype"] == "bfloat16"
    assert exact._stream is not None
    assert half._stream is not None
    assert 2 * half._stream.cache.nbytes == exact._stream.cache.nbytes
    difference = np.abs(a.points_in_anchor - b.points_in_anchor)  # type: ignore[operator]
    assert 0 < difference.max() < 0.05 * np.abs(a.points_in_anchor).max()  # type: ignore[arg-type]
    again = NetworkPredictor(
        make_network("small"), name="test", config=NetworkPredictorConfig(long_side=56), dtype="bfloat16"
    )
    again.restore({name: np.array(value) for name, value in half.snapshot().items()})
    frame = frames(6)[5]
    assert np.array_equal(again.step(frame).points_in_anchor, half.step(frame).points_in_anchor)  # type: ignore[arg-type]


def test_raw_predictions_unless_the_checkpoint_asks_for_more() -> None:
    stream = frames(4)
    network = make_network()
    stem = replace(network.config.matching, window_estimation=False)  # type: ignore[type-var]
    raw = Anchor3RNetwork(replace(network.config, matching=stem)).eval()
    raw.load_state_dict(network.state_dict())
    measured = [step for p in [NetworkPredictor(raw, name="raw")] for step in map(p.step, stream)]
    assert measured[-1].covariance is None
    cache = raw.new_cache(*network_size(48, 64, raw.config, NetworkPredictorConfig()))
    for frame in stream:
        pixels = torch.from_numpy(frame.image).permute(2, 0, 1)[None].float() / 255
        camera = torch.tensor([[CAMERA.fx, CAMERA.fy, CAMERA.cx, CAMERA.cy]], dtype=torch.float32)
        with torch.inference_mode():
            output = raw.stream(pixels, cache, camera)
    by_age = dict(zip(output.ages[0].tolist(), output.poses[-1][0].tolist(), strict=True))
    expected = [by_age[age][:3] for age in (3, 2, 1)]
    np.testing.assert_allclose(measured[-1].member_from_anchor_translation, expected, atol=1e-6)
    estimated = [step for p in [predictor()] for step in map(p.step, stream)]
    assert estimated[-1].covariance is not None


def test_a_first_centric_network_maps_the_true_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its poses are T_t T_1⁻¹: if they are exact, so is every pose of the map, in one component."""
    network = Anchor3RNetwork(shrunk(PRESETS["small"], window=3, gauge="first")).eval()
    truth = SE3.exp(np.cumsum(0.1 * np.random.default_rng(3).standard_normal((8, 6)), 0))
    stream, seen = network.stream, []

    def exact(image: Tensor, cache: ImageCache, camera: Tensor | None = None) -> WindowOutput:
        pose = truth[len(seen)] @ truth[0].inverse()
        seen.append(pose)
        quat = quat_from_rotation(pose.rotation)[[1, 2, 3, 0]]
        raw = np.concatenate([pose.translation, quat, [1.0, 1.0]])
        return replace(stream(image, cache, camera), poses=[torch.from_numpy(raw).view(1, 1, 9)])

    monkeypatch.setattr(network, "stream", exact)
    config = NetworkPredictorConfig(long_side=56)
    mapper = Mapper(NetworkPredictor(network, name="first", config=config))
    updates = [mapper.step(frame) for frame in frames(8)]
    assert {update.component for update in updates} == {0}
    assert updates[5].prediction.members.tolist() == [0]
    for update, pose in zip(updates, truth, strict=True):
        expected = pose @ truth[0].inverse()
        assert update.camera_from_world is not None
        np.testing.assert_allclose(update.camera_from_world.matrix(), expected.matrix(), atol=1e-6)


def test_checkpoints_load_or_say_why_not(tmp_path: Path) -> None:
    network = make_network()
    path = tmp_path / "mine.safetensors"
    save_checkpoint(path, network.state_dict(), config=network.config.to_json())
    loaded = NetworkPredictor.load(path)
    assert loaded.window == 4
    assert loaded.name == "network:mine"
    assert loaded.settings["weights"] == file_digest(path)
    with pytest.raises(Anchor3RError, match="windows of 4 frames, not 9"):
        NetworkPredictor.load(path, window=9)
    small = make_network("small")
    other = tmp_path / "small.safetensors"
    save_checkpoint(other, small.state_dict(), config=small.config.to_json())
    assert NetworkPredictor.load(other, window=7).window == 7
    del (state := network.state_dict())["query_tokens"]
    save_checkpoint(path, state, config=network.config.to_json())
    with pytest.raises(Anchor3RError, match="query_tokens"):
        NetworkPredictor.load(path)
