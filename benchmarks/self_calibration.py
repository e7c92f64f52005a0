"""Self-calibration of the feature predictor over fields of view, with and without translation.

Each world is seen with every field of view, once with the camera stated and once without. A case is covered
if the true focal length lies within two stated spreads; where the camera is called determined, its error of
position is compared with that of the stated one, and with what two stated spreads of the focal length make of
the true motion: a spread of three per cent allows for more than errors of a thousandth of the path. Prints a
line a case and a summary, and writes all of it to self_calibration.json after every case; cases that were
finished in an earlier run into the same folder are read back.

    python benchmarks/self_calibration.py --seeds 101 102 103
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tyro

from anchor3r.geometry import SE3
from anchor3r.pipeline.mapper import Mapper
from anchor3r.pipeline.mapping import find_camera
from anchor3r.predictors.features.predictor import FeaturesPredictor
from anchor3r.sources import open_source
from anchor3r.sources.frame import Frame
from anchor3r.sources.worlds import world_frame
from anchor3r.trajectory import Trajectory, bend_by_focal_length, estimated_from_true_world
from anchor3r.worlds import World, make_world, sample_config

_MOTIONS = ({"kind": "street", "motion": "driving"}, {"kind": "room"}, {"kind": "open"})
"""What a seed is seen with, in turn."""
_MAX_ATE_RATIO = 1.5
"""Error of position over that with the stated camera that a camera called determined may have."""
_STILL = 1e-6
"""Length of a path that only rounding gives to a camera which stays in its place."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One video with and without its camera stated."""

    name: str
    true_px: float
    focal_px: float
    sigma_px: float
    determined: bool
    num_poses: int
    num_poses_stated: int
    ate: float
    """Error of position over the length of the path; NaN without three poses or for a rotation"""
    ate_stated: float
    ate_of_spread: float
    """What two stated spreads of the focal length make of the true motion; NaN for a rotation"""
    invented: float
    """Part of the steps that the map gives a length although the camera stays in place; NaN if it moves"""
    invented_stated: float

    @property
    def is_covered(self) -> bool:
        return abs(self.focal_px - self.true_px) <= 2 * self.sigma_px

    @property
    def is_worse(self) -> bool:
        """Whether a camera that is called determined has cost accuracy."""
        return self.determined and self.ate > _MAX_ATE_RATIO * self.ate_stated

    @property
    def is_better(self) -> bool:
        """Whether it has gained as much: of errors that only differ by chance, as many do."""
        return self.determined and self.ate_stated > _MAX_ATE_RATIO * self.ate

    @property
    def is_unexplained(self) -> bool:
        """Whether it has cost more than the error of the stated camera and two spreads account for."""
        return self.is_worse and self.ate > math.hypot(self.ate_stated, self.ate_of_spread)


def main(
    out: Path = Path("out/self_calibration"),
    seeds: tuple[int, ...] = tuple(range(101, 111)),
    fovs_deg: tuple[float, ...] = (20.0, 40.0, 60.0, 80.0, 100.0, 120.0),
    rotations: bool = True,
    frames: int = 150,
    size: tuple[int, int] = (320, 240),
) -> None:
    """Maps every world with every field of view.

    Args:
        out: Folder for self_calibration.json.
        seeds: Worlds; streets, rooms and open ground in turn.
        fovs_deg: Horizontal fields of view.
        rotations: Also keep the camera in one place, with two of the fields of view a world.
        frames: Length of a video.
        size: Width and height of its images.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / "self_calibration.json"
    cases = [Case(**found) for found in json.loads(path.read_text())] if path.is_file() else []
    for name, world in _worlds(seeds, fovs_deg, rotations, frames, size):
        if name not in {case.name for case in cases}:
            cases.append(_case(name, world))
            path.write_text(json.dumps([asdict(case) for case in cases], indent=2) + "\n")
        case = next(case for case in cases if case.name == name)
        print(_line(case), flush=True)
    told = [case for case in cases if case.num_poses]
    determined = [case for case in told if case.determined]
    worse, unexplained, better, covered = (
        sum(getattr(case, name) for case in determined)
        for name in ("is_worse", "is_unexplained", "is_better", "is_covered")
    )
    print(
        f"{sum(case.is_covered for case in told)} of {len(told)} within two spreads; {len(determined)} "
        f"determined, of which {covered} within two spreads; {worse} of these with more than "
        f"{_MAX_ATE_RATIO} × the stated camera's error, {unexplained} with more than two spreads "
        f"account for, and {better} with less than 1/{_MAX_ATE_RATIO} of it"
    )


def _worlds(
    seeds: tuple[int, ...],
    fovs_deg: tuple[float, ...],
    rotations: bool,
    frames: int,
    size: tuple[int, int],
) -> Iterator[tuple[str, World]]:
    for seed in seeds:
        for k, fov_deg in enumerate(fovs_deg):
            config = sample_config(
                seed, frames=frames, width=size[0], height=size[1], horizontal_fov_deg=fov_deg,
                **_MOTIONS[seed % len(_MOTIONS)],
            )  # fmt: skip
            world = make_world(config)
            yield f"{seed} {config.kind} {config.motion} {fov_deg:.0f}", world
            if rotations and k % (len(fovs_deg) // 2) == seed % (len(fovs_deg) // 2):
                still = SE3.from_center(
                    world.camera_from_world.rotation,
                    np.broadcast_to(world.camera_from_world[0].center(), (frames, 3)),
                )
                yield f"{seed} {config.kind} rotation {fov_deg:.0f}", replace(world, camera_from_world=still)


def _case(name: str, world: World) -> Case:
    frames = [world_frame(world, index) for index in range(len(world))]
    unknown, ate, invented, num_poses = _mapped([replace(frame, intrinsics=None) for frame in frames], world)
    _, ate_stated, invented_stated, num_poses_stated = _mapped(frames, world)
    return Case(
        name=name,
        true_px=world.intrinsics.fx,
        focal_px=float(unknown["focal_px"]),
        sigma_px=float(unknown["focal_sigma_px"]),
        determined=bool(unknown["determined"]),
        num_poses=num_poses,
        num_poses_stated=num_poses_stated,
        ate=ate,
        ate_stated=ate_stated,
        ate_of_spread=_bend(world, 2 * float(unknown["focal_sigma_px"] / unknown["focal_px"])),
        invented=invented,
        invented_stated=invented_stated,
    )


def _mapped(frames: list[Frame], world: World) -> tuple[dict[str, float | bool], float, float, int]:
    """The camera that is believed in, the error of position, the invented steps, and the number of poses."""
    predictor = FeaturesPredictor()
    with open_source(frames) as source:
        found = find_camera(source, predictor)
    if found is not None:
        predictor.assume_camera(found)
    mapper = Mapper(predictor)
    updates = [mapper.step(frame) for frame in frames]
    poses = {pose.frame: pose for update in updates for pose in update.late_poses}
    poses |= {update.frame: update.pose for update in updates if update.pose is not None}
    camera = predictor.estimated_camera()
    assert camera is not None
    if not poses:
        return camera, float("nan"), float("nan"), 0
    ordered = [poses[frame] for frame in sorted(poses)]
    estimated = Trajectory(
        frames=np.array([pose.frame for pose in ordered]),
        rotation=np.array([pose.rotation for pose in ordered]),
        center=np.array([pose.center for pose in ordered]),
        component=np.array([pose.component for pose in ordered]),
    ).largest_component()
    true = _true_trajectory(world).select(estimated.frames)
    if true.path_length() < _STILL:
        steps = np.linalg.norm(np.diff(estimated.center, axis=0), axis=1)
        return camera, float("nan"), float((steps > 0).mean()), len(poses)
    return camera, _ate(estimated, true), float("nan"), len(poses)


def _bend(world: World, relative: float) -> float:
    """What a focal length that is off by so much makes of the true path; NaN where nothing moves."""
    found = bend_by_focal_length(_true_trajectory(world), relative)
    return float("nan") if found is None else found


def _true_trajectory(world: World) -> Trajectory:
    poses = world.camera_from_world
    return Trajectory(frames=np.arange(len(world)), rotation=poses.rotation, center=poses.center())


def _ate(estimated: Trajectory, true: Trajectory) -> float:
    """Error of position over the length of the path; NaN where nothing moves or no alignment fits."""
    estimated_from_true = None
    if true.path_length() >= _STILL:
        estimated_from_true = estimated_from_true_world(estimated, true)
    if estimated_from_true is None:
        return float("nan")
    error = estimated_from_true.inverse().apply(estimated.center) - true.center
    return float(np.sqrt((error**2).sum(1).mean()) / true.path_length())


def _line(case: Case) -> str:
    known = "" if case.determined else ", undetermined"
    told = f"ATE {case.ate:.2%} ({case.ate_stated:.2%} stated, {case.ate_of_spread:.2%} by two spreads)"
    if np.isnan(case.ate) and np.isnan(case.ate_stated):
        told = f"{case.invented:.0%} of its steps invented ({case.invented_stated:.0%} stated)"
    off = abs(case.focal_px - case.true_px) / case.sigma_px
    return (
        f"{case.name}: {case.focal_px:.0f} ± {case.sigma_px:.0f} for {case.true_px:.0f} px, {off:.1f} spreads"
        f"{known}, {told}, "
        f"poses {case.num_poses} / {case.num_poses_stated}"
        f"{'' if case.is_covered else ' NOT COVERED'}{' WORSE' if case.is_worse else ''}"
        f"{' UNEXPLAINED' if case.is_unexplained else ''}"
    )


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
