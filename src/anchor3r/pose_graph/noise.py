"""How noisy the edges are, measured on the graph itself.

An edge of weight w has the rotation variance ρ² / w about each axis, and the translation variance τ² ℓ² / w
along each, where ℓ is its length: a predictor's translations err in proportion. Short edges are not trusted
beyond a tenth of the median length. ρ and τ are medians over the edges of a kind (windows; loops; priors), so
that up to half of them may be wrong.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.gauss_newton import ErrorModel
from anchor3r.pose_graph.pose_system import Float, PoseEdges, PoseState, error_lengths, squared_errors
from anchor3r.robust import MEDIAN_NORM_3

MEDIAN_CHI_SQ_6 = 5.348
"""Median of a sum of six squared unit Gaussians: what the squared error of an honest edge is about."""
_LENGTH_FLOOR = 0.1  # of the median length
_SAMPLE = 100_000  # edges of a kind that are looked at
_SETTLED = 0.02  # noise that changes by a smaller part is kept
LEAST_REDUNDANCY = 1.5
"""Edges a frame that tell their noise by themselves."""
_LEAST = 1e-9  # noise of measurements that fit exactly


class NoiseModel:
    """Measures and remembers ρ and τ of each kind of edges."""

    def __init__(self, edges: Edges, pose_edges: PoseEdges, used: NDArray[np.bool_]) -> None:
        self._edges = pose_edges
        self._weight = np.where(used, edges.weight, 0.0)
        length_sq = np.einsum("mk,mk->m", edges.translation, edges.translation)
        self._relative_to = (
            length_sq + _LENGTH_FLOOR**2 * float(np.median(length_sq[used])) if used.any() else length_sq
        )
        self._kind = edges.kind
        if _is_chain(pose_edges, used & (edges.kind == EdgeKind.WINDOW)):
            # A chain meets each of its edges exactly if only they are trusted enough, so its errors do not
            # tell its noise: the edges of all kinds are measured as one.
            self._kind = np.full(len(edges), EdgeKind.WINDOW, np.int8)
        self._sample = {kind: _thinned(np.flatnonzero(used & (self._kind == kind))) for kind in EdgeKind}
        self.rotation_rad = {kind: np.inf for kind in EdgeKind}
        self.translation = {kind: np.inf for kind in EdgeKind}

    def measure(self, state: PoseState) -> bool:
        """Looks at the errors of a state; False if noise is what it was."""
        changed = False
        for kind, sample in self._sample.items():
            if len(sample) == 0:
                continue
            e = self._edges
            part = PoseEdges(e.i[sample], e.t[sample], e.rotation[sample], e.translation[sample])
            angle, distance = np.empty(len(sample)), np.empty(len(sample))
            error_lengths(part, state, angle, distance)
            root = np.sqrt(self._weight[sample])
            rotation = _spread(angle * root)
            translation = _spread(distance * root / np.sqrt(np.maximum(self._relative_to[sample], 1e-300)))
            for known, value in ((self.rotation_rad, rotation), (self.translation, translation)):
                if not abs(value - known[kind]) < _SETTLED * known[kind]:
                    known[kind] = value
                    changed = True
        return changed

    def information(self) -> Float:
        """(m, 2) inverse variances, 0 for edges that are not used."""
        out = np.empty((len(self._weight), 2))
        rotation, translation = (
            np.array([values[kind] for kind in EdgeKind]) ** -2
            for values in (self.rotation_rad, self.translation)
        )
        out[:, 0] = self._weight * rotation[self._kind]
        out[:, 1] = self._weight * translation[self._kind] / np.maximum(self._relative_to, 1e-300)
        return out


class ErrorModelEstimator:
    """Tells `minimise` the information of all edges at a state, and how wide the loss is."""

    def __init__(
        self,
        edges: Edges,
        pose_edges: PoseEdges,
        used: NDArray[np.bool_],
        *,
        width: float,
        window_inflation: float = 1.0,
    ) -> None:
        """width: of the Geman–McClure loss in standard deviations; inf for squares.

        window_inflation: how many times larger the variance of window edges is than what is given or
        measured, as they share errors.
        """
        self._edges, self._used, self._width_sq = pose_edges, used, width**2
        self._given: Float | None = None
        known = used & edges.has_information()
        self._deflation = np.where(edges.kind == EdgeKind.WINDOW, 1 / window_inflation, 1.0)
        if known.any():
            weight = edges.weight * self._deflation
            self._given = np.where(known[:, None, None], edges.information * weight[:, None, None], 0.0)
        self._unknown = np.flatnonzero(used & ~known)
        self.noise = NoiseModel(edges, pose_edges, used & ~known)
        self._inflation = np.inf

    def estimate(self, state: PoseState) -> ErrorModel:
        """The model that the errors of a state suggest."""
        self._update(state)
        return ErrorModel(self.information(), self._width_sq * self._inflation)

    def current(self) -> tuple[ErrorModel, float]:
        """The model last suggested, and how many times larger variances are than those it was given."""
        return ErrorModel(self.information(), self._width_sq * self._inflation), self._inflation

    def __call__(self, state: PoseState) -> ErrorModel | None:
        """The model that the errors of a state suggest; None if it has hardly changed."""
        if np.isinf(self._width_sq) or not self._update(state):
            return None
        return ErrorModel(self.information(), self._width_sq * self._inflation)

    def _update(self, state: PoseState) -> bool:
        changed = self.noise.measure(state)
        if changed and self._given is not None:
            measured = self._measured()[self._unknown]
            for axis in range(6):
                self._given[self._unknown, axis, axis] = measured[:, axis // 3]
        inflation = self._inflation_of(state)
        if not abs(inflation - self._inflation) < _SETTLED * self._inflation:
            self._inflation, changed = inflation, True
        return changed

    def information(self) -> Float:
        """(m, 2), or (m, 6, 6) if any edge came with a matrix."""
        return self._measured() if self._given is None else self._given

    def _measured(self) -> Float:
        """(m, 2)"""
        return self.noise.information() * self._deflation[:, None]

    def _inflation_of(self, state: PoseState) -> float:
        """How many times larger squared errors are than given matrices promise; at least 1."""
        if self._given is None:
            return 1.0
        square = np.empty(len(self._used))
        squared_errors(self._edges, state, self._given, square)
        return max(1.0, float(np.median(square[self._used])) / MEDIAN_CHI_SQ_6)


def _is_chain(edges: PoseEdges, which: NDArray[np.bool_]) -> bool:
    """Whether some edges (m,) hardly join their frames by more than a chain would."""
    num_frames = len(np.unique(np.concatenate([edges.i[which], edges.t[which]])))
    return bool(0 < np.count_nonzero(which) < LEAST_REDUNDANCY * num_frames)


def _thinned(index: NDArray[np.int64]) -> NDArray[np.int64]:
    return index[:: max(1, len(index) // _SAMPLE)]


def _spread(lengths: Float) -> float:
    return max(float(np.median(lengths)) / MEDIAN_NORM_3, _LEAST)
