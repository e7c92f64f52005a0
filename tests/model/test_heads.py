"""The heads: what refinement, masks, activations and positions must obey."""

import pytest
import torch

from anchor3r.model.heads import CameraHead, DPTHead, _add_position, activate_pose


def camera_head(iterations: int = 3) -> CameraHead:
    torch.manual_seed(0)
    return CameraHead(32, depth=2, num_heads=4, iterations=iterations)


def dpt_head(kind: str) -> DPTHead:
    torch.manual_seed(0)
    return DPTHead(24, kind=kind, features=16, channels=(8, 12, 16, 16))


def test_camera_head_gives_one_prediction_a_round() -> None:
    rounds = camera_head()(torch.randn(2, 5, 32))
    assert [r.shape for r in rounds] == [(2, 5, 9)] * 3
    assert not torch.allclose(rounds[0], rounds[2])


def test_fewer_rounds_are_the_first_of_more() -> None:
    tokens = torch.randn(1, 4, 32)
    torch.testing.assert_close(camera_head(1)(tokens)[0], camera_head(3)(tokens)[0])


def test_camera_head_treats_frames_alike() -> None:
    head, tokens = camera_head(), torch.randn(1, 5, 32)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(head(tokens[:, order])[-1], head(tokens)[-1][:, order], rtol=1e-4, atol=1e-5)


def test_masked_tokens_are_as_if_absent() -> None:
    head, tokens = camera_head(), torch.randn(2, 5, 32)
    valid = torch.tensor([[True] * 5, [True, True, True, False, False]])
    ragged = head(tokens, valid)[-1]
    torch.testing.assert_close(ragged[:1], head(tokens[:1])[-1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ragged[1:, :3], head(tokens[1:, :3])[-1], rtol=1e-4, atol=1e-5)


def test_a_round_learns_nothing_through_the_previous_one() -> None:
    head, tokens = camera_head(2), torch.randn(1, 3, 32)
    tokens.requires_grad_()
    first, last = head(tokens)
    (gradient,) = torch.autograd.grad(last.sum(), head.empty_pose_tokens, allow_unused=True)
    assert gradient is None
    (gradient,) = torch.autograd.grad(first.sum(), head.empty_pose_tokens)
    assert gradient.abs().sum() > 0


def test_field_of_view_is_not_negative_and_the_rest_untouched() -> None:
    raw = torch.linspace(-1, 1, 18).view(2, 9)
    active = activate_pose(raw)
    torch.testing.assert_close(active[:, :7], raw[:, :7])
    assert active[0, 7:].tolist() == [0, 0]
    torch.testing.assert_close(active[1, 7:], raw[1, 7:])


@pytest.mark.parametrize(("kind", "channels"), [("points", 3), ("depth", 1)])
def test_dense_maps_have_the_image_size(kind: str, channels: int) -> None:
    levels = [torch.randn(2, 6, 24) for _ in range(4)]
    values, confidence = dpt_head(kind)(levels, (2, 3), (28, 42))
    assert values.shape == (2, 28, 42, channels)
    assert confidence.shape == (2, 28, 42)
    assert confidence.min() > 1
    assert kind == "points" or values.min() > 0


def test_dense_activations_invert_the_logarithms() -> None:
    raw = torch.tensor([-2.0, 0.5, 3.0])
    for kind, expected in (("points", raw.sign() * raw.abs().expm1()), ("depth", raw[:1].exp())):
        head = dpt_head(kind)
        last = head.scratch.output_conv2[2]
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(torch.cat([raw[: len(expected)], torch.tensor([0.7])]))
            values, confidence = head([torch.randn(1, 4, 24) for _ in range(4)], (2, 2), (28, 28))
        torch.testing.assert_close(values[0, 5, 7], expected)
        torch.testing.assert_close(confidence[0, 5, 7], 1 + torch.tensor(0.7).exp())


def test_heads_compute_in_float32_under_autocast() -> None:
    levels = [torch.randn(1, 4, 24) for _ in range(4)]
    head, camera, tokens = dpt_head("points"), camera_head(), torch.randn(1, 3, 32)
    plain, plain_pose = head(levels, (2, 2), (28, 28))[0], camera(tokens)[-1]
    with torch.autocast("cpu", torch.bfloat16):
        mixed, mixed_pose = head(levels, (2, 2), (28, 28))[0], camera(tokens)[-1]
    torch.testing.assert_close(mixed, plain, rtol=0, atol=0)
    torch.testing.assert_close(mixed_pose, plain_pose, rtol=0, atol=0)


def test_positions_span_the_image_whatever_the_grid() -> None:
    coarse, fine = (
        _add_position(torch.zeros(1, 8, 3, 5), (30, 50)),
        _add_position(torch.zeros(1, 8, 9, 15), (30, 50)),
    )
    # The centre of a coarse cell is the centre of the middle one of the fine cells in it.
    torch.testing.assert_close(coarse, fine[:, :, 1::3, 1::3])
    # The first sine of the column's half runs at frequency 1 over a diagonal of length 2.
    right = 0.1 * torch.sin(torch.tensor(50 / (30**2 + 50**2) ** 0.5 * 4 / 5))
    torch.testing.assert_close(coarse[0, 0, 0, -1], right)
    torch.testing.assert_close(coarse[0, 0, :, 0], -right.expand(3))


def test_motions_are_in_their_unit_and_fields_of_view_are_not() -> None:
    torch.manual_seed(1)
    tokens = torch.randn(2, 5, 32)
    plain, small = camera_head(), camera_head()
    small.motion_scale = 0.05
    for one, other in zip(plain(tokens), small(tokens), strict=True):
        torch.testing.assert_close(other[..., :6], 0.05 * one[..., :6])
        torch.testing.assert_close(other[..., 6:], one[..., 6:])


def test_detail_moves_what_is_near_it() -> None:
    torch.manual_seed(0)
    head = DPTHead(24, kind="depth", features=16, channels=(8, 12, 16, 16), detail=5)
    levels, detail = [torch.randn(1, 48, 24) for _ in range(4)], torch.randn(1, 5, 24, 32)
    changed = detail.clone()
    changed[0, :, 4, 6] += 1
    before, after = (head(levels, (6, 8), (24, 32), x)[0] for x in (detail, changed))
    moved = (before - after).abs()[0, ..., 0] > 1e-6
    assert moved[4, 6]
    assert not moved[14:].any()
    assert not moved[:, 16:].any()


def test_a_camera_can_start_at_the_identity() -> None:
    """Nearly no motion and a field of view of a radian in every round, whatever the tokens say."""
    torch.manual_seed(0)
    head = CameraHead(32, depth=2, num_heads=4, iterations=3, motion_scale=0.5, start="identity")
    for raw in head(torch.randn(2, 5, 32)):
        assert raw[..., :6].abs().max() < 0.1
        assert (raw[..., 6:] - 1).abs().max() < 0.2
