"""The network: streaming equals parallel, the cache rule, ablations, sizes, bad input."""

import dataclasses
import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from anchor3r.model.cache import ImageCache
from anchor3r.model.config import PRESETS, MatchingConfig, NetworkConfig, shrunk
from anchor3r.model.network import Anchor3RNetwork, WindowOutput

NUM_FRAMES = 17
SMALL_STEM = MatchingConfig(channels=(8, 12, 16), coarse_dim=16, fine_dim=8, hidden=16)
SIZES = {14: (28, 42), 16: (32, 48)}


def build(preset: str, *, seed: int = 0, **changes: object) -> Anchor3RNetwork:
    """A shrunk network with weights random enough that every path matters."""
    torch.manual_seed(seed)
    if preset == "tiny":
        changes = {"matching": SMALL_STEM} | changes
    network = Anchor3RNetwork(shrunk(PRESETS[preset], **changes)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return network


def clip_for(network: Anchor3RNetwork, batch: int = 2, seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    height, width = SIZES[network.config.patch_size]
    camera = torch.tensor([40.0, 42.0, width / 2, height / 2]).expand(batch, NUM_FRAMES, 4)
    return torch.rand(batch, NUM_FRAMES, 3, height, width), camera


def stream_all(network: Anchor3RNetwork, clip: Tensor, camera: Tensor | None) -> list[WindowOutput]:
    cache = network.new_cache(*clip.shape[-2:], batch=len(clip))
    with torch.inference_mode():
        return [
            network.stream(clip[:, t], cache, None if camera is None else camera[:, t])
            for t in range(clip.shape[1])
        ]


def assert_same(network: Anchor3RNetwork, clip: Tensor, camera: Tensor | None) -> None:
    with torch.no_grad():
        parallel = network(clip, camera)
    b, s = clip.shape[:2]
    ages = parallel.ages.unflatten(0, (b, s))
    for t, step in enumerate(stream_all(network, clip, camera)):
        assert sorted(step.ages[0].tolist()) == sorted(a for a in ages[0, t].tolist() if a >= 0)
        for rounds, expected in zip(step.poses, parallel.poses, strict=True):
            for group, age in enumerate(step.ages[0].tolist()):
                slot = ages[0, t].tolist().index(age)
                torch.testing.assert_close(
                    rounds[:, group], expected.unflatten(0, (b, s))[:, t, slot], rtol=1e-4, atol=1e-4
                )
        torch.testing.assert_close(
            step.points, parallel.points.unflatten(0, (b, s))[:, t], rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(
            step.confidence, parallel.confidence.unflatten(0, (b, s))[:, t], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("window", [1, 2, 5, 10, 15])
@pytest.mark.parametrize("preset", ["full", "base", "small", "tiny"])
def test_streaming_equals_parallel(preset: str, window: int) -> None:
    if preset == "tiny" and window == 1:
        pytest.skip("the correlation stem needs another frame to compare with")
    network = build(preset, window=window)
    assert_same(network, *clip_for(network))


@pytest.mark.parametrize("preset", ["full", "base", "small"])
def test_streaming_equals_parallel_at_real_width(preset: str) -> None:
    """The preset's own channels, heads, registers, point head and images of 518 pixels; only less depth."""
    config = PRESETS[preset]  # type: ignore[index]
    assert config.encoder is not None
    config = replace(
        config, encoder=replace(config.encoder, depth=1), depth=2, head_layers=(0, 0, 1, 1), camera_depth=1,
        window=3,
    )  # fmt: skip
    torch.manual_seed(0)
    network = Anchor3RNetwork(config).eval()
    assert_same(network, torch.rand(1, 4, 3, 42, 518), None)


def test_the_whole_tiny_preset_streams_as_it_trains() -> None:
    torch.manual_seed(0)
    network = Anchor3RNetwork(PRESETS["tiny"]).eval()
    assert_same(network, torch.rand(1, 8, 3, 96, 128), None)


@pytest.mark.parametrize("changes", [{"gauge": "first"}, {"cache_pose_tokens": True}])
@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize("preset", ["small", "tiny"])
def test_ablations_stream_as_they_train(preset: str, changes: dict[str, object], window: int) -> None:
    stem = {"matching": replace(SMALL_STEM, window_estimation=False)} if preset == "tiny" else {}
    network = build(preset, window=window, **stem, **changes)
    assert_same(network, *clip_for(network))


def test_unknown_camera_streams_as_it_trains() -> None:
    network = build("tiny", window=4)
    clip, _ = clip_for(network)
    assert_same(network, clip, None)


def test_ablation_switches_change_the_result() -> None:
    clip, camera = clip_for(build("small", window=4))
    plain = build("small", window=4)
    with torch.no_grad():
        expected = plain(clip, camera).points
        for changes in ({"cache_pose_tokens": True}, {"gauge": "first"}):
            other = build("small", window=4, **changes)
            other.load_state_dict(plain.state_dict())
            assert (other(clip, camera).points - expected).abs().max() > 1e-4


def test_the_future_does_not_reach_back() -> None:
    network = build("small", window=4)
    clip, camera = clip_for(network)
    changed = clip.clone()
    changed[:, 9:] = torch.rand_like(changed[:, 9:])
    with torch.no_grad():
        before, after = (network(c, camera).points.unflatten(0, clip.shape[:2]) for c in (clip, changed))
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert (before[:, 9:] - after[:, 9:]).abs().max() > 1e-3


def test_frames_outside_the_receptive_field_are_forgotten() -> None:
    # Each window block looks W - 1 frames back, so depth · (W - 1) frames is as far as anything travels.
    network = build("small", window=2, depth=4)
    clip, camera = clip_for(network)
    changed = clip.clone()
    changed[:, 0] = torch.rand_like(changed[:, 0])
    with torch.no_grad():
        before, after = (network(c, camera).points.unflatten(0, clip.shape[:2]) for c in (clip, changed))
    torch.testing.assert_close(before[:, 5:], after[:, 5:])
    assert (before[:, 1] - after[:, 1]).abs().max() > 1e-5


@pytest.mark.parametrize("cache_pose_tokens", [False, True])
def test_queries_leave_no_trace_in_the_cache(cache_pose_tokens: bool) -> None:
    """What a step says must not depend on the queries of earlier steps (paper: image-only cache), unless the
    ablation that keeps them is asked for.

    Image tokens read the queries of their own step in window blocks, so the network has one layer: what it
    caches comes before that.
    """
    network = build("small", window=3, depth=1, head_layers=(0, 0, 0, 0), cache_pose_tokens=cache_pose_tokens)
    clip, camera = clip_for(network, batch=1)
    templates = network.query_tokens.detach().clone()
    said = []
    for scale in (1.0, 5.0):
        cache = network.new_cache(*clip.shape[-2:])
        with torch.no_grad():
            network.query_tokens.copy_(scale * templates)
            network.stream(clip[:, 0], cache, camera[:, 0])
            network.query_tokens.copy_(templates)
            said.append(network.stream(clip[:, 1], cache, camera[:, 1]))
    difference = float((said[0].poses[-1] - said[1].poses[-1]).abs().max())
    assert (difference > 1e-3) if cache_pose_tokens else (difference == 0)


@pytest.mark.parametrize("preset", ["small", "tiny"])
def test_cache_memory_is_constant_and_bounded(preset: str) -> None:
    """Everything that the cache holds, written out: nothing of it grows once the window is full."""
    network = build(preset, window=5)
    clip, camera = clip_for(network, batch=1)
    cache = network.new_cache(*clip.shape[-2:])
    sizes = []
    with torch.inference_mode():
        for t in range(NUM_FRAMES):
            output = network.stream(clip[:, t], cache, camera[:, t])
            assert output.ages.shape[1] == min(t + 1, 5)
            sizes.append(len(pickle.dumps(vars(cache))))
    # A few bytes more or less are those of the numbers that count frames.
    assert max(sizes[4:]) - min(sizes[4:]) < 100
    assert cache.nbytes <= sizes[-1]


@pytest.mark.parametrize("preset", ["small", "tiny"])
def test_a_snapshot_continues_bit_for_bit(preset: str) -> None:
    network = build(preset, window=4)
    clip, camera = clip_for(network, batch=1)
    cache = network.new_cache(*clip.shape[-2:])
    with torch.inference_mode():
        for t in range(7):
            network.stream(clip[:, t], cache, camera[:, t])
        state = cache.snapshot()
        direct = [network.stream(clip[:, t], cache, camera[:, t]) for t in range(7, 10)]
        other = network.new_cache(*clip.shape[-2:])
        other.restore(state)
        resumed = [network.stream(clip[:, t], other, camera[:, t]) for t in range(7, 10)]
    for a, b in zip(direct, resumed, strict=True):
        assert torch.equal(a.poses[-1], b.poses[-1])
        assert torch.equal(a.points, b.points)


def test_reset_forgets_everything() -> None:
    network = build("tiny", window=4)
    clip, camera = clip_for(network, batch=1)
    cache = network.new_cache(*clip.shape[-2:])
    with torch.inference_mode():
        first = network.stream(clip[:, 0], cache, camera[:, 0])
        for t in range(1, 6):
            network.stream(clip[:, t], cache, camera[:, t])
        cache.reset()
        again = network.stream(clip[:, 0], cache, camera[:, 0])
    assert torch.equal(first.points, again.points)


def test_compiled_parts_say_the_same() -> None:
    """Traced only: what the real compiler makes of the trace is its own affair, and takes a minute."""
    network = build("small", window=3).eval()
    clip, camera = clip_for(network, batch=1)
    with torch.no_grad():
        before = network(clip[:, :2], camera[:, :2])
        network.compile_parts(backend="aot_eager")
        after = network(clip[:, :2], camera[:, :2])
    torch.testing.assert_close(after.points, before.points)
    torch.testing.assert_close(after.poses[-1], before.poses[-1])


def test_gradient_checkpointing_changes_nothing() -> None:
    network = build("small", window=3).train()
    clip, camera = clip_for(network, batch=1)
    gradients = []
    for wanted in (False, True):
        network.gradient_checkpointing = wanted
        network.zero_grad()
        output = network(clip[:, :4], camera[:, :4])
        (output.points.mean() + output.poses[-1].square().mean()).backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_the_full_preset_has_the_papers_size() -> None:
    with torch.device("meta"):
        network = Anchor3RNetwork(PRESETS["full"])
    count = sum(p.numel() for p in network.parameters())
    assert count == 1_157_995_830
    assert abs(count / 1.2e9 - 1) < 0.05


@pytest.mark.parametrize("preset", list(PRESETS))
def test_config_survives_json(preset: str) -> None:
    config = PRESETS[preset]  # type: ignore[index]
    assert NetworkConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(1, 1, 28, 42), r"\(1, 1, 28, 42\)"),
        (torch.zeros(1, 3, 30, 42), "30×42 is no multiple of the patch size 14"),
        (torch.full((1, 3, 28, 42), torch.nan), "not finite"),
        (torch.zeros(3, 28, 42), r"\(3, 28, 42\)"),
    ],
)
def test_bad_images_are_named(image: Tensor, message: str) -> None:
    network = build("small", window=2)
    with pytest.raises(ValueError, match=message):
        network.stream(image, network.new_cache(28, 42))


def test_a_cache_of_another_network_is_refused() -> None:
    network, other = build("small", window=2), build("small", window=3)
    image = torch.zeros(1, 3, 28, 42)
    with pytest.raises(ValueError, match="another configuration"):
        network.stream(image, other.new_cache(28, 42))
    with pytest.raises(ValueError, match="6 tokens"):
        network.stream(image, network.new_cache(28, 28))
    with pytest.raises(ValueError, match="another configuration or image size"):
        network.new_cache(28, 42).restore(other.new_cache(28, 42).snapshot())


def test_impossible_configurations_are_refused() -> None:
    small, tiny = PRESETS["small"], PRESETS["tiny"]
    with pytest.raises(ValueError, match="window is 0"):
        dataclasses.replace(small, window=0)
    with pytest.raises(ValueError, match="head layers"):
        dataclasses.replace(small, head_layers=(0, 1, 2, 99))
    with pytest.raises(ValueError, match="either a transformer encoder or a correlation stem"):
        dataclasses.replace(small, encoder=None)
    with pytest.raises(ValueError, match="estimated in the current frame's gauge"):
        dataclasses.replace(tiny, gauge="first")
    with pytest.raises(ValueError, match="two with the first gauge"):
        dataclasses.replace(small, gauge="first", window=1)


def test_attention_by_frame_sums_to_one_and_respects_the_window() -> None:
    network = build("small", window=3)
    clip, camera = clip_for(network, batch=1)
    shares = network.attention_by_frame(clip[:, :6], camera[:, :6])
    assert shares.shape == (network.config.depth, 6, 6)
    torch.testing.assert_close(shares.sum(-1), torch.ones(network.config.depth, 6))
    for t in range(6):
        for i in range(6):
            if i > t or i <= t - 3:
                assert shares[:, t, i].abs().max() == 0


def test_cache_view_gives_the_image_side_in_time_order() -> None:
    network = build("small", window=3)
    clip, camera = clip_for(network, batch=1)
    cache = network.new_cache(*clip.shape[-2:])
    assert isinstance(cache, ImageCache)
    seen = []
    with torch.inference_mode():
        for t in range(5):
            network.stream(clip[:, t], cache, camera[:, t])
            keys = cache.view(1)[0]
            seen.append(keys[:, -1].clone())
            for back in range(min(t + 1, 3)):
                torch.testing.assert_close(keys[:, -1 - back], seen[t - back])
