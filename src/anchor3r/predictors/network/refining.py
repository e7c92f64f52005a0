"""A window of the correlation preset, sharpened: from its matches, from the window before, from the images.

The network's matches give poses and depths, except for members that are far away in the image: there they
fail together. The window before has seen those members from nearer, so its poses, chained to the newest one,
are a better guess, unless the pictures say otherwise. In the same way a few frames that are too old for the
network stay in sight, from window to window: they see the depths from farther apart. From there on matches
are measured on the images.

Shapes: K members, P cells of the correlation stem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.geometry import SE3, Pinhole
from anchor3r.model.matching import Matches
from anchor3r.predictors.network.continuity import compare_units, recalled_depth
from anchor3r.predictors.network.photometric_alignment import Grey, WindowView, halved
from anchor3r.predictors.network.reading import Reading, confidence_of
from anchor3r.predictors.network.window_adjustment import AdjustmentConfig, WindowGeometry, adjust_window

_FAR_MORE = 1.5
"""By how much a member has to look less like the anchor for its matches to be believed instead: matches that
fail together say that nothing has moved, which is not so unlike on a road under a sky."""
_FAR_OFF = 6.0
"""And by how much an older one, than the window's other members, to be lost from sight."""
_FARTHEST = 0.25
"""Motion over depth, beyond which an older member is given up: it sees another size of everything, and the
window's own members are far enough apart by then."""


def refined(
    reading: Reading,
    matches: Matches,
    ages: Tensor,
    images: Mapping[int, NDArray[np.uint8]],
    camera: Pinhole,
    last: Reading | None,
    config: AdjustmentConfig,
) -> Reading:
    """The reading with poses and depths that fit the images, and with members of which there is only that.

    ages (pairs,) says which member each match is of; images, grey, are by age, those of older frames among
    them; `last` is the window before, in any unit.
    """
    order = [int(np.flatnonzero(ages.cpu().numpy() == age)[0]) for age in reading.ages]
    focal, center = np.array([camera.fx, camera.fy]), np.array([camera.cx, camera.cy])
    matched = (matches.pixel[order].double().cpu().numpy() - center) / focal
    weight = matches.weight()[order].double().cpu().numpy()[..., None, None]
    seen = matches.visible[order].double().sigmoid().cpu().numpy()[..., None, None]
    rays = reading.points.reshape(-1, 3).astype(np.float64)
    assert len(rays) == matched.shape[1], "points and matches lie on one grid"
    rays, depth = rays[:, :2] / rays[:, 2:], rays[:, 2]
    predicted = WindowGeometry(reading.rotation, reading.translation, -np.log(np.maximum(depth, 1e-6)))
    information = weight * np.diag(focal**2)
    result = adjust_window(
        rays, matched, information, predicted, predicted, replace(config, depth_sigma=config.start_sigma),
        iterations=3, patience=4.0,
    )  # fmt: skip
    shape = (reading.points.shape[0], reading.points.shape[1])
    start = result.settled(predicted, config, shape)
    wholes = {age: image.astype(np.float32) for age, image in images.items()}
    halves = {age: halved(image) for age, image in wholes.items()}
    if last is not None:
        start = _likelier(start, _carried_on(reading, last, camera), reading.ages, halves, camera, shape)
        reading, start, seen = _with_last(reading, start, seen, last, halves, camera)
        predicted = replace(start, log_inverse_depth=predicted.log_inverse_depth)
    for pictures in (halves, wholes):  # half the size first, where a step reaches farther
        view = WindowView.of(pictures, reading.ages, camera)
        inverse_depth = np.exp(start.log_inverse_depth).reshape(shape)
        matched, information = view.align(inverse_depth, SE3(start.rotation, start.translation))
        result = adjust_window(
            rays, matched, information * seen, predicted, start, config, iterations=3, patience=2.0
        )
        start = result.settled(predicted, config, shape)
    return replace(
        _placed(reading, rays, start),
        covariance=_as_right_perturbation(result.covariance, start.rotation),
        confidence=confidence_of(result.depth_information)
        .reshape(reading.confidence.shape)
        .astype(np.float32),
    )


def _carried_on(reading: Reading, last: Reading, camera: Pinhole) -> WindowGeometry | None:
    """The window as it is if the camera has gone on moving as before and the surfaces are where they were.

    None if the windows share too little. It is in the reading's unit.
    """
    before = np.flatnonzero(last.ages == 1)
    if not len(before) or 1 not in reading.ages:
        return None
    rotation, translation = reading.rotation.copy(), reading.translation.copy()
    newest = int(np.flatnonzero(reading.ages == 1)[0])
    rotation[newest], translation[newest] = last.rotation[before[0]], last.translation[before[0]]
    moved = replace(reading, rotation=rotation, translation=translation, covariance=None)
    log_unit, sigma = compare_units(replace(moved, translation=0 * translation), last, camera)
    if sigma is None:
        return None
    in_last_unit = replace(moved, points=reading.points * np.float32(np.exp(log_unit)))
    log_depth = recalled_depth(in_last_unit, last, camera) - log_unit
    geometry = WindowGeometry(rotation, translation * np.exp(-log_unit), -log_depth)
    return _chained(reading.ages, geometry, last, log_unit)


def _likelier(
    matched: WindowGeometry,
    carried_on: WindowGeometry | None,
    ages: NDArray[np.int64],
    images: Mapping[int, Grey],
    camera: Pinhole,
    cells: tuple[int, int],
) -> WindowGeometry:
    """The one of the two that makes the members look more like the anchor.

    Matches of a few frames of which much is far away or flat can be explained by a turn, too.
    """
    if carried_on is None:
        return matched
    view = WindowView.of(images, ages, camera)
    misfits = [
        np.median(view.misfit(np.exp(g.log_inverse_depth).reshape(cells), SE3(g.rotation, g.translation)))
        for g in (matched, carried_on)
    ]
    return carried_on if misfits[1] < misfits[0] else matched


def _with_last(
    reading: Reading,
    geometry: WindowGeometry,
    seen: NDArray[np.float64],
    last: Reading,
    images: Mapping[int, Grey],
    camera: Pinhole,
) -> tuple[Reading, WindowGeometry, NDArray[np.float64]]:
    """The window as far as the last one knows it better: poses of its members, and older members.

    seen (K, ...) is how far to believe that each cell is visible in a member, 1 in older ones.
    """
    points = reading.points.reshape(-1, 3).astype(np.float64)
    rays = points[:, :2] / points[:, 2:]
    log_unit, sigma = compare_units(_placed(reading, rays, geometry), last, camera)
    if sigma is None:
        return reading, geometry, seen
    num_matched = len(reading.ages)
    older = [age for age in images if age > reading.ages.max() and age - 1 in last.ages]
    reading = replace(reading, ages=np.array([*reading.ages, *older], np.int64))
    geometry = replace(
        geometry,
        rotation=np.concatenate([geometry.rotation, np.tile(np.eye(3), (len(older), 1, 1))]),
        translation=np.concatenate([geometry.translation, np.zeros((len(older), 3))]),
    )
    seen = np.concatenate([seen, np.ones((len(older), *seen.shape[1:]))])
    chained = _chained(reading.ages, geometry, last, log_unit)
    view = WindowView.of(images, reading.ages, camera)
    inverse_depth = np.exp(geometry.log_inverse_depth).reshape(reading.points.shape[:2])
    of_chained = view.misfit(inverse_depth, SE3(chained.rotation, chained.translation))
    of_matched = replace(view, members=view.members[:num_matched]).misfit(
        inverse_depth, SE3(geometry.rotation[:num_matched], geometry.translation[:num_matched])
    )
    take = of_chained[:num_matched] < _FAR_MORE * of_matched
    typical = float(np.median(np.minimum(of_chained[:num_matched], of_matched)))
    moved = np.linalg.norm(chained.translation[num_matched:], axis=1) * float(np.median(inverse_depth))
    take = np.append(take, (of_chained[num_matched:] < _FAR_OFF * typical) & (moved < _FARTHEST))
    kept = take | (np.arange(len(take)) < num_matched)
    rotation = np.where(take[:, None, None], chained.rotation, geometry.rotation)
    translation = np.where(take[:, None], chained.translation, geometry.translation)
    return (
        replace(reading, ages=reading.ages[kept]),
        replace(geometry, rotation=rotation[kept], translation=translation[kept]),
        seen[kept],
    )


def _placed(reading: Reading, rays: NDArray[np.float64], geometry: WindowGeometry) -> Reading:
    """The reading with that geometry; rays (P, 2) are those of its cells."""
    points = np.concatenate([rays, np.ones((len(rays), 1))], 1) / np.exp(geometry.log_inverse_depth)[:, None]
    return replace(
        reading,
        rotation=geometry.rotation,
        translation=geometry.translation,
        points=points.reshape(reading.points.shape).astype(np.float32),
    )


def _chained(
    ages: NDArray[np.int64], geometry: WindowGeometry, last: Reading, log_unit: float
) -> WindowGeometry:
    """The geometry with poses by way of the anchor before, where the last window has them.

    That anchor, of age 1 now, is what the last window's poses are relative to; `log_unit` is how its unit
    compares.
    """
    rotation, translation = geometry.rotation.copy(), geometry.translation.copy()
    newest = int(np.flatnonzero(ages == 1)[0])
    for k, age in enumerate(ages):
        for before in np.flatnonzero(last.ages == age - 1):
            rotation[k] = last.rotation[before] @ geometry.rotation[newest]
            translation[k] = last.rotation[before] @ geometry.translation[newest]
            translation[k] += last.translation[before] * np.exp(-log_unit)
    return replace(geometry, rotation=rotation, translation=translation)


def _as_right_perturbation(
    covariance: NDArray[np.float64], rotation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(K, 6, 6) of left rotations and added translations -> of (R, t) Exp(ξ), as the graph has it."""
    turn = np.zeros_like(covariance)
    turn[:, :3, :3] = turn[:, 3:, 3:] = np.swapaxes(rotation, 1, 2)
    return turn @ covariance @ np.swapaxes(turn, 1, 2)
