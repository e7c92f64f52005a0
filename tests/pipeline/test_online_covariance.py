"""Whether online poses lie as near to the truth as their covariances say, on worlds."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.evaluation.metrics import ellipsoid_shares, local_scales, step_errors
from anchor3r.geometry import SE3
from anchor3r.pipeline.mapper import Mapper
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import open_source
from anchor3r.threads import limited_threads

STREET, ROOM = "world:202?kind=street&motion=driving", "world:203?kind=room&motion=handheld"


@pytest.mark.parametrize(
    ("world", "predictor", "frames", "size"),
    [
        (STREET, "features", 90, (320, 240)),
        (ROOM, "features", 70, (320, 240)),
        (ROOM, "tiny", 30, (128, 96)),
    ],
)
def test_the_truth_lies_within_the_ellipsoids(
    world: str, predictor: str, frames: int, size: tuple[int, int]
) -> None:
    mapper, poses, truth = Mapper(load_predictor(predictor)), [], []
    uri = f"{world}&frames={frames}&width={size[0]}&height={size[1]}"
    with limited_threads(1), open_source(uri) as source:
        for frame in source.frames():
            update = mapper.step(frame)
            if update.pose is not None:
                poses.append(update.pose)
                assert frame.camera_from_world is not None
                truth.append(frame.camera_from_world.inverse().matrix())
    estimated = SE3.from_matrix(np.stack([pose.camera_from_world.inverse().matrix() for pose in poses]))
    true = SE3.from_matrix(np.stack(truth))
    errors = step_errors(estimated, true, local_scales(estimated, true))
    covariance = np.stack([np.full((6, 6), np.nan) if p.covariance is None else p.covariance for p in poses])
    shares = ellipsoid_shares(errors, covariance[1:])
    assert shares["within_95_percent"] >= 85
    assert shares["within_50_percent"] >= 40
    assert ellipsoid_shares(errors, covariance[1:] / 16)["within_95_percent"] < 85, "not just wide"
