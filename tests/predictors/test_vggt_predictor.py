"""VGGT over a stream: gauge, members, scale between windows, and going on where it stopped."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole, rotation_from_quat
from anchor3r.model.heads import DPTHead
from anchor3r.model.vggt import VGGT
from anchor3r.predictors import WindowPrediction, WindowStatus
from anchor3r.predictors.confidence import from_learned
from anchor3r.predictors.inference import camera_from_fov
from anchor3r.predictors.vggt import (
    DepthMap,
    VGGTPredictor,
    VGGTPredictorConfig,
    log_scale_ratio,
)
from anchor3r.sources.frame import Frame
from small_vggt import SMALL_VGGT

SIZE = (42, 56)


def make_predictor(model: VGGT | None = None, **changes: int) -> VGGTPredictor:
    torch.manual_seed(0)
    config = VGGTPredictorConfig(**{"window": 4, "long_side": 56, **changes})
    return VGGTPredictor(model or VGGT(SMALL_VGGT), config)


def make_frames(count: int, size: tuple[int, int] = (60, 80)) -> list[Frame]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
    return [Frame(index=10 + k, timestamp_s=k / 10, image=image) for k, image in enumerate(images)]


def assert_same(a: WindowPrediction, b: WindowPrediction) -> None:
    for name in vars(a):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def test_a_window_is_the_clip_with_its_anchor_first() -> None:
    model = VGGT(SMALL_VGGT)
    predictor = make_predictor(model)
    frames = make_frames(6, SIZE)
    prediction = [predictor.step(frame) for frame in frames][-1]
    clip = torch.stack([torch.from_numpy(f.image).permute(2, 0, 1) / 255 for f in frames[:1:-1]])
    with torch.inference_mode():
        expected = model(clip)
    pose = expected.pose_enc.double().numpy()
    camera_from_reference = SE3(rotation_from_quat(pose[:, [6, 3, 4, 5]]), pose[:, :3])
    relative = camera_from_reference[1:] @ camera_from_reference[0].inverse()
    assert prediction.anchor == 15
    assert prediction.members.tolist() == [14, 13, 12]
    np.testing.assert_allclose(prediction.member_from_anchor_rotation, relative.rotation, atol=1e-4)
    np.testing.assert_allclose(prediction.member_from_anchor_translation, relative.translation, atol=1e-4)
    np.testing.assert_allclose(prediction.points_in_anchor[..., 2], expected.depth[0, ..., 0], rtol=1e-4)
    np.testing.assert_allclose(prediction.points_confidence, from_learned(expected.depth_conf[0]), rtol=1e-4)
    assert np.linalg.norm(prediction.descriptor) == pytest.approx(1)


def test_windows_grow_to_their_size_and_then_slide() -> None:
    predictor = make_predictor()
    members = [predictor.step(frame).members.tolist() for frame in make_frames(6)]
    assert members == [[], [10], [11, 10], [12, 11, 10], [13, 12, 11], [14, 13, 12]]


def test_frames_between_anchors_are_members_of_the_next_window() -> None:
    predictor = make_predictor(every=3)
    predictions = [predictor.step(frame) for frame in make_frames(7)]
    assert [p.status for p in predictions] == [
        WindowStatus.OK if k % 3 == 0 else WindowStatus.INITIALISING for k in range(7)
    ]
    assert [p.anchor for p in predictions] == list(range(10, 17))
    assert predictions[3].members.tolist() == [12, 11, 10]
    assert predictions[6].members.tolist() == [15, 14, 13]
    assert predictions[4].points_in_anchor is None
    assert predictions[6].log_scale_sigma is not None


class DriftingVGGT(VGGT):
    """Sees a scene of unit depth, each window in a scale 1.5 times the last one's."""

    scale = 1.0

    def dense(
        self, head: DPTHead, layers: Mapping[int, Tensor], grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        values, confidence = super().dense(head, layers, grid)
        self.scale *= 1.5
        return torch.ones_like(values) / self.scale, confidence


@pytest.mark.parametrize("every", [1, 2])
def test_the_ratio_of_scales_is_that_of_the_new_window_to_the_previous(every: int) -> None:
    predictor = make_predictor(DriftingVGGT(SMALL_VGGT), every=every)
    predictions = [predictor.step(frame) for frame in make_frames(7)]
    windows = [p for p in predictions if p.status == WindowStatus.OK]
    assert windows[0].log_scale_ratio == 0
    assert windows[0].log_scale_sigma is None
    for window in windows[1:]:
        assert window.log_scale_ratio == pytest.approx(np.log(1.5), abs=1e-5)
        assert window.log_scale_sigma == pytest.approx(1e-3)


def test_scale_ratio_resists_outliers_and_knows_its_spread() -> None:
    rng = np.random.default_rng(0)
    previous, current = {}, {}
    for index in range(4):
        depth = rng.uniform(1, 10, (40, 50))
        confidence = rng.uniform(1, 5, (40, 50)).astype(np.float32)
        noisy = depth / 2 * np.exp(0.05 * rng.standard_normal(depth.shape))
        # What the network does not trust is nonsense, and so is a tenth of the rest.
        nonsense = (confidence < 2.5) | (rng.uniform(size=depth.shape) < 0.1)
        noisy[nonsense] *= 20
        previous[index] = DepthMap(depth=depth.astype(np.float32), confidence=confidence)
        current[index + 1] = DepthMap(depth=depth.astype(np.float32), confidence=confidence)
        current[index] = DepthMap(depth=noisy.astype(np.float32), confidence=confidence)
    ratio, sigma = log_scale_ratio(previous, {k: current[k] for k in range(4)}, min_sigma=1e-3)
    assert ratio == pytest.approx(np.log(2), abs=0.02)
    assert 0.02 < sigma < 0.04
    assert log_scale_ratio(previous, {9: current[0]}, min_sigma=1e-3) == (0.0, None)


def test_depth_is_unprojected_through_the_known_camera() -> None:
    frame = make_frames(1)[0]
    camera = Pinhole(70.0, 75.0, 38.0, 31.0, 80, 60)
    known = Frame(index=0, timestamp_s=0.0, image=frame.image, intrinsics=camera)
    prediction, guessed = make_predictor().step(known), make_predictor().step(frame)
    assert prediction.intrinsics is not None
    np.testing.assert_allclose(prediction.intrinsics.matrix(), camera.matrix())
    depth = guessed.points_in_anchor[..., 2]
    np.testing.assert_allclose(
        prediction.points_in_anchor, camera.resized(56, 42).unproject_map(depth), rtol=1e-5, atol=1e-6
    )


def test_field_of_view_spans_the_image() -> None:
    camera = camera_from_fov(np.radians(50), np.radians(70), 42, 56)
    assert camera.horizontal_fov_deg() == pytest.approx(70)
    top, bottom = (camera.unproject(np.array([27.5, v]), np.array(1.0)) for v in (-0.5, 41.5))
    assert np.degrees(np.arctan(bottom[1]) - np.arctan(top[1])) == pytest.approx(50)
    assert np.isfinite(camera_from_fov(0.0, 4.0, 42, 56).matrix()).all()


@pytest.mark.parametrize("every", [1, 3])
def test_a_snapshot_goes_on_bit_for_bit(every: int) -> None:
    frames = make_frames(9)
    predictor = make_predictor(every=every)
    for frame in frames[:5]:
        predictor.step(frame)
    state = predictor.snapshot()
    expected = [predictor.step(frame) for frame in frames[5:]]
    other = make_predictor(every=every)
    other.step(frames[8])
    other.restore(state)
    for frame, prediction in zip(frames[5:], expected, strict=True):
        assert_same(other.step(frame), prediction)


def test_an_empty_snapshot_is_a_fresh_start() -> None:
    predictor, frame = make_predictor(), make_frames(1)[0]
    state = predictor.snapshot()
    first = predictor.step(frame)
    predictor.restore(state)
    assert_same(predictor.step(frame), first)


def test_relate_measures_any_window_and_leaves_the_stream_alone() -> None:
    frames = make_frames(8)
    predictor, undisturbed = make_predictor(), make_predictor()
    streamed = [predictor.step(frame) for frame in frames[:4]][-1]
    for frame in frames[:4]:
        undisturbed.step(frame)
    related = predictor.relate([frames[2], frames[1], frames[0]], frames[3])
    assert related.members.tolist() == [12, 11, 10]
    np.testing.assert_allclose(
        related.member_from_anchor_translation, streamed.member_from_anchor_translation, atol=1e-5
    )
    assert related.log_scale_sigma is None
    assert predictor.relate([frames[0]], frames[7]).members.tolist() == [10]
    assert_same(predictor.step(frames[4]), undisturbed.step(frames[4]))


def test_images_of_another_shape_are_refused_and_the_stream_survives() -> None:
    predictor = make_predictor()
    wide, tall = make_frames(3), make_frames(1, (80, 60))[0]
    predictor.step(wide[0])
    with pytest.raises(Anchor3RError, match="42×56 pixels, frame 10 as 56×42"):
        predictor.step(tall)
    with pytest.raises(Anchor3RError, match="one aspect ratio"):
        predictor.relate([tall], wide[1])
    assert predictor.step(wide[1]).members.tolist() == [10]


@pytest.mark.parametrize("changes", [{"window": 1}, {"every": 4}, {"every": 0}, {"scale_frames": 0}])
def test_settings_that_cannot_work_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        make_predictor(**changes)
