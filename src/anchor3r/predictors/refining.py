"""A window of the correlation preset, sharpened: from its matches, from the window before, from the images.

The network's matches give poses and depths, except for members that are far away in the image: there they
fail together. The window before has seen those members from nearer, so its poses, chained to the newest one,
are a better guess, unless the pictures say otherwise. From there on matches are measured on the images.

Shapes: K members, P cells of the correlation stem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.geometry import SE3, Pinhole
from anchor3r.model.matching import Matches
from anchor3r.predictors.continuity import compare_units
from anchor3r.predictors.reading import Reading, confidence_of
from anchor3r.predictors.sharpening import WindowView
from anchor3r.predictors.window_adjustment import AdjustmentConfig, WindowGeometry, adjust_window

_OCTAVES = (1, 0)
"""Matches are measured in half the size, where a step reaches farther, then in full."""
_FAR_MORE = 1.5
"""Matches that fail together say that nothing has moved, which is not so unlike on a road under a sky."""


def refined(
    reading: Reading,
    matches: Matches,
    ages: Tensor,
    images: Sequence[NDArray[np.uint8]],
    camera: Pinhole,
    last: Reading | None,
    config: AdjustmentConfig,
) -> Reading:
    """The reading with poses and depths that fit the images.

    ages (pairs,) says which member each match is of; images are the window's, grey, oldest first; `last` is
    the window before, in any unit.
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
        rays, matched, information, predicted, predicted, config, iterations=6, patience=8.0
    )
    start = result.settled(predicted, config)
    shape = reading.points.shape[:2]
    for octaves in _OCTAVES:
        view = WindowView.of(images, reading.ages, camera, octaves)
        if last is not None and octaves == _OCTAVES[0]:
            chained = _chained(_placed(reading, rays, start), start, last, camera)
            start = _better(view, start, chained, shape)
            predicted = replace(start, log_inverse_depth=predicted.log_inverse_depth)
        inverse_depth = np.exp(start.log_inverse_depth).reshape(shape)
        matched, information = view.align(inverse_depth, SE3(start.rotation, start.translation))
        result = adjust_window(
            rays, matched, information * seen, predicted, start, config, iterations=4, patience=2.0
        )
        start = result.settled(predicted, config)
    return replace(
        _placed(reading, rays, start),
        covariance=_as_right_perturbation(result.covariance, start.rotation),
        confidence=confidence_of(result.depth_information)
        .reshape(reading.confidence.shape)
        .astype(np.float32),
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


def _chained(reading: Reading, geometry: WindowGeometry, last: Reading, camera: Pinhole) -> WindowGeometry:
    """The reading's geometry with poses by way of the anchor before, where the last window has them.

    That anchor, of age 1 now, is what the last window's poses are relative to.
    """
    log_unit, sigma = compare_units(reading, last, camera)
    if sigma is None:
        return geometry
    rotation, translation = geometry.rotation.copy(), geometry.translation.copy()
    newest = int(np.flatnonzero(reading.ages == 1)[0])
    for k, age in enumerate(reading.ages):
        for before in np.flatnonzero(last.ages == age - 1):
            rotation[k] = last.rotation[before] @ geometry.rotation[newest]
            translation[k] = last.rotation[before] @ geometry.translation[newest]
            translation[k] += last.translation[before] * np.exp(-log_unit)
    return replace(geometry, rotation=rotation, translation=translation)


def _better(
    view: WindowView, matched: WindowGeometry, chained: WindowGeometry, cells: tuple[int, int]
) -> WindowGeometry:
    """For each member the chained pose, unless the matched one makes it look far more like the anchor."""
    inverse_depth = np.exp(matched.log_inverse_depth).reshape(cells)
    of_matched, of_chained = (
        view.misfit(inverse_depth, SE3(found.rotation, found.translation)) for found in (matched, chained)
    )
    take = of_chained < _FAR_MORE * of_matched
    return replace(
        matched,
        rotation=np.where(take[:, None, None], chained.rotation, matched.rotation),
        translation=np.where(take[:, None], chained.translation, matched.translation),
    )


def _as_right_perturbation(
    covariance: NDArray[np.float64], rotation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(K, 6, 6) of left rotations and added translations -> of (R, t) Exp(ξ), as the graph has it."""
    turn = np.zeros_like(covariance)
    turn[:, :3, :3] = turn[:, 3:, 3:] = np.swapaxes(rotation, 1, 2)
    return turn @ covariance @ np.swapaxes(turn, 1, 2)
