"""What a group of loop edges says of the scale: exact where members move, little where they stand."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.geometry import SE3, so3_exp
from anchor3r.pose_graph.drift import WindowNoise
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.loop_events import LoopGroups, condense_groups
from anchor3r.pose_graph.topology import topology_of

MEMBERS, ANCHOR = np.arange(10), 10


def group_of(step: float, noise: float, log_scale: float, seed: int) -> LoopGroups:
    """Ten members that moved by `step` each and an anchor a unit away; odometry has that noise, the group a
    tenth of it and distances that are smaller by exp(log_scale)."""
    rng = np.random.default_rng(seed)
    center = np.zeros((11, 3))
    center[:10, 2] = step * MEMBERS
    center[ANCHOR] = 1.0, 0.2, 0.5
    rotation = so3_exp(0.2 * rng.standard_normal((11, 3)))
    seen = center + 0.1 * noise * rng.standard_normal((11, 3))
    center += noise * rng.standard_normal((11, 3))
    odometry = SE3(rotation, -(rotation @ center[..., None])[..., 0])
    exact = SE3(rotation, -(rotation @ seen[..., None])[..., 0])
    member_from_anchor = exact[:10] @ exact[10].inverse()
    edges = Edges.of(
        MEMBERS, ANCHOR, member_from_anchor.rotation, np.exp(-log_scale) * member_from_anchor.translation,
        kind=EdgeKind.LOOP,
    )  # fmt: skip
    typical = WindowNoise(rotation_rad=0.001, relative=0.005, num_frames=10)
    return condense_groups(edges, topology_of(edges), odometry, typical, 1e-3, True)


@pytest.mark.parametrize("log_scale", [-0.4, 0.0, 0.3])
def test_a_group_whose_members_move_tells_the_scale(log_scale: float) -> None:
    group = group_of(step=0.1, noise=1e-4, log_scale=log_scale, seed=0)
    assert group.correction.log_scale[0] == pytest.approx(log_scale, abs=2e-3)
    assert group.sigmas.log_scale[0] < 3e-3


@pytest.mark.parametrize("seed", range(8))
def test_where_members_hardly_move_noise_is_not_taken_for_scale(seed: int) -> None:
    """Noise makes distances longer: by a factor of five here, on which all pairs of members agree."""
    group = group_of(step=5e-4, noise=0.01, log_scale=0.0, seed=seed)
    assert abs(group.correction.log_scale[0]) < 2 * group.sigmas.log_scale[0]
    assert group.sigmas.log_scale[0] > 0.3
    assert abs(group.correction.log_scale[0]) < 0.5


def test_the_scale_is_as_sure_as_it_says() -> None:
    """Over noise of all sizes: within two spreads in at least nine of ten."""
    noises = np.repeat(np.geomspace(1e-4, 0.1, 13), 10)
    groups = [group_of(0.05, noise, 0.1, seed) for seed, noise in enumerate(noises)]
    off = np.array([abs(group.correction.log_scale[0] - 0.1) for group in groups])
    told = np.array([group.sigmas.log_scale[0] for group in groups])
    assert np.mean(off < 2 * told) >= 0.9
