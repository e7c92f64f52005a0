"""Loop reinsertion: retrieved places become windows again, and windows become long-range edges.

A match (query, match) is one loop event. The match's neighbourhood fills the predictor's window and the query
is its transient anchor; then the other way round. What comes out is checked by itself, before any graph is
asked: each direction's edges must agree with each other, and both directions on how the two frames lie.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, rotation_angle
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.online import estimate_pose
from anchor3r.predictors.interface import Predictor, WindowPrediction, WindowStatus
from anchor3r.robust import Estimate, median_log_ratio
from anchor3r.sources.frame import Frame
from anchor3r.store import Loop, LoopState, Map
from anchor3r.trajectory import Trajectory

FrameReader = Callable[[int], Frame]
"""Gives a frame of the map by its index."""
_LEAST_MEMBERS = 2
"""Of a window: distances between members tell its scale."""
_REMEMBERED_BYTES = 64 << 20
"""Of images: those of some dozens of neighbouring events of ordinary videos."""


@dataclass(frozen=True, kw_only=True)
class ReinsertionConfig:
    """How much an event may disagree with itself and still be put to the graph."""

    max_angle_deg: float = 6.0
    """Difference between edges of one direction (in the median), and between the two directions, at most."""
    max_distance: float = 0.4
    """Difference of their positions at most, as a part of the distance between the frames and of their
    windows' length."""
    max_scale_drift: float = 1.5
    """A window without common depths keeps its scale if its distances are off by at most this factor: so
    much may have drifted, and the loop is to tell."""
    cells_alike: float = 16.0
    """Neighbouring cells of a point map that err together and count as one measurement of scale."""
    min_scale_sigma: float = 0.01
    """Spread of a reinserted window's log scale at least, however many depths agree."""

    def __post_init__(self) -> None:
        if not (self.max_angle_deg > 0 and self.max_distance > 0):
            raise ValueError(f"max_angle_deg and max_distance must be positive: {self}")
        if not (self.max_scale_drift >= 1 and self.cells_alike >= 1 and self.min_scale_sigma > 0):
            raise ValueError(f"max_scale_drift and cells_alike are at least 1, min_scale_sigma > 0: {self}")


@dataclass(frozen=True)
class _Direction:
    """What one direction of an event says: the window of one frame with the other as its anchor."""

    edges: Edges
    anchor_from_world: SE3
    """Where the edges put their anchor, in the world of the members' odometry."""
    angle_deg: float
    """Median disagreement of the edges about the anchor's rotation."""
    distance: float
    """Median disagreement of the edges about the anchor's position."""
    length: float
    """Median distance between the anchor and the members, and among the members."""


class _RememberedFrames:
    """The frames used last: neighbouring events share most of theirs, so each is decoded once."""

    def __init__(self, read_frame: FrameReader) -> None:
        self._read, self._lock = read_frame, Lock()
        self._frames: OrderedDict[int, Frame] = OrderedDict()
        self._num_bytes = 0

    def __call__(self, index: int) -> Frame:
        with self._lock:
            if (frame := self._frames.get(index)) is None:
                frame = self._frames[index] = self._read(index)
                self._num_bytes += frame.image.nbytes
            self._frames.move_to_end(index)
            while self._num_bytes > _REMEMBERED_BYTES and len(self._frames) > 1:
                self._num_bytes -= self._frames.popitem(last=False)[1].image.nbytes
            return frame


class Reinsertion:
    """Measures loop events of one map; from several threads at once if its predictor can."""

    def __init__(
        self,
        scene_map: Map,
        predictor: Predictor,
        read_frame: FrameReader,
        config: ReinsertionConfig,
        *,
        online: Trajectory | None = None,
        members: NDArray[np.int64] | None = None,
    ) -> None:
        """online, members: the map's poses and the frames that windows look back to, if they are at hand."""
        self._map, self._predictor, self._config = scene_map, predictor, config
        self._read_frame = _RememberedFrames(read_frame)
        self._online = scene_map.trajectory(placed=False) if online is None else online
        # Frames that windows look back to: all of them, or only the keyframes of a predictor that has such.
        # Only these are related to each other by several windows, so that a loop can tell their scale.
        members = scene_map.graph().edges.frame_i if members is None else members
        self._known = self._online.select(np.isin(self._online.frames, members))

    def measure(self, event: int, query: int, match: int, similarity: float) -> tuple[Loop, list[Edges]]:
        """One event: the edges of its directions, and the verdict as far as it goes without the graph."""
        figures = {"similarity": similarity}
        directions: list[_Direction] = []
        state = LoopState.PENDING
        for anchor, place in ((query, match), (match, query)):
            direction = self._look(anchor, place)
            if direction is None:
                state = LoopState.UNRELATED
                break
            directions.append(direction)
            name = "forward" if anchor == query else "backward"
            figures |= {f"{name}_spread_deg": direction.angle_deg, f"{name}_spread": direction.distance}
            if not self._agrees(direction.angle_deg, direction.distance, direction.length):
                state = LoopState.INCONSISTENT
                break  # the other direction is not worth a window
        if state is LoopState.PENDING:
            angle_deg, distance = self._disagreement(query, match, *directions)
            figures |= {"directions_deg": angle_deg, "directions_distance": distance}
            if not self._agrees(angle_deg, distance, max(direction.length for direction in directions)):
                state = LoopState.ASYMMETRIC
        loop = Loop(event=event, query=query, match=match, state=state, figures=figures)
        return loop, [direction.edges for direction in directions]

    def _agrees(self, angle_deg: float, distance: float, length: float) -> bool:
        config = self._config
        return angle_deg <= config.max_angle_deg and distance <= config.max_distance * length

    def _look(self, anchor: int, place: int) -> _Direction | None:
        """The window of `place` with `anchor` as its transient anchor."""
        members = self._members_around(place)
        # Where keyframes are sparse the window reaches far, perhaps to the anchor itself: that is odometry.
        members = members[np.abs(members - place) < np.abs(members - anchor)]
        if len(members) < _LEAST_MEMBERS:
            return None
        frames = [self._read_frame(int(frame)) for frame in members]
        poses = self._online.camera_from_world[np.searchsorted(self._online.frames, members)]
        prediction = self._predictor.relate_posed(frames, poses, self._read_frame(anchor))
        edges = loop_edges(prediction, self._log_scale_of(prediction))
        edges = edges.select(np.isin(edges.frame_i, self._known.frames))
        if prediction.status is not WindowStatus.OK or not len(edges):
            return None
        known = self._online.select(np.searchsorted(self._online.frames, edges.frame_i))
        in_map_scale = self._scale_at(anchor) * edges.translation
        found = estimate_pose(known.rotation, known.center, edges.rotation, in_map_scale, frame=anchor)
        # The length of the window itself counts too: the anchor may stand exactly at the place.
        spread = np.linalg.norm(known.center - np.median(known.center, axis=0), axis=1)
        length = np.linalg.norm(found.center - known.center, axis=1)
        return _Direction(
            edges,
            SE3.from_center(found.rotation, found.center),
            float(np.degrees(found.residual_rad)),
            float(np.sqrt(np.trace(found.covariance[3:, 3:]) / 3)),
            float(np.median(length) + np.median(spread)),
        )

    def _members_around(self, place: int) -> NDArray[np.int64]:
        """The window of a place: members around it, and in their middle the frame itself.

        It was looked at as an anchor already, or will be. If it is no member elsewhere, it has no edge.
        """
        count = self._predictor.window - 1
        if count < 2 or place in self._known.frames:
            return neighbourhood(self._known, place, count)
        around = neighbourhood(self._known, place, count - 1)
        return np.sort(np.append(around, place)) if self._is_one_component(around, place) else around

    def _is_one_component(self, members: NDArray[np.int64], place: int) -> bool:
        if self._online.component is None:
            return True
        rows = np.searchsorted(self._online.frames, np.append(members, place))
        return len(np.unique(self._online.component[rows])) == 1

    def _log_scale_of(self, prediction: WindowPrediction) -> Estimate:
        """Log of the new window's scale over that of the anchor's window in the map.

        Depths that both gave the anchor tell it. Without them a predictor is trusted to keep its scale,
        unless its distances between members are far from odometry's: then it has none of its own.
        """
        config = self._config
        stored, again = self._map.points(prediction.anchor), prediction.points_in_anchor
        if stored is not None and again is not None and stored.points_in_camera.shape == again.shape:
            sure = _surer_half(stored.confidence) & _surer_half(prediction.points_confidence)
            return self._ratio(stored.points_in_camera[..., 2][sure], again[..., 2][sure])
        members = self._online.select(np.searchsorted(self._online.frames, prediction.members))
        found = self._ratio(
            _distances(members.center) / self._scale_at(prediction.anchor), _distances(_centers(prediction))
        )
        return found if abs(found.value) > math.log(config.max_scale_drift) else Estimate(0.0, math.nan)

    def _ratio(self, stored: NDArray[np.floating], again: NDArray[np.floating]) -> Estimate:
        found = median_log_ratio(stored, again, alike=self._config.cells_alike)
        least = self._config.min_scale_sigma
        return found if math.isnan(found.sigma) else found._replace(sigma=max(found.sigma, least))

    def _scale_at(self, frame: int) -> float:
        """Scale of a frame's window, in that of the map."""
        log_scale = self._online.log_scale
        return 1.0 if log_scale is None else math.exp(log_scale[np.searchsorted(self._online.frames, frame)])

    def _disagreement(
        self, query: int, match: int, forward: _Direction, backward: _Direction
    ) -> tuple[float, float]:
        """Angle in degrees and distance between what both directions say of query_from_match."""
        rows = np.searchsorted(self._online.frames, [query, match])
        query_pose, match_pose = (self._online.camera_from_world[int(row)] for row in rows)
        one = forward.anchor_from_world @ match_pose.inverse()
        other = query_pose @ backward.anchor_from_world.inverse()
        angle_rad = float(rotation_angle(one.rotation @ other.rotation.T))
        return math.degrees(angle_rad), float(np.linalg.norm(one.center() - other.center()))


def _surer_half(confidence: NDArray[np.floating] | None) -> NDArray[np.bool_]:
    """Where a point map is surer of itself than in the median; everywhere if it does not say."""
    if confidence is None:
        return np.ones((), bool)
    given = confidence[confidence > 0]
    return confidence >= (np.median(given) if given.size else 0.0)


def _distances(centers: NDArray[np.floating]) -> NDArray[np.floating]:
    """(n, 3) -> (n (n - 1) / 2,) between all pairs."""
    one, other = np.triu_indices(len(centers), 1)
    return np.linalg.norm(centers[one] - centers[other], axis=1)


def _centers(prediction: WindowPrediction) -> NDArray[np.float64]:
    """(n, 3) of the members, in the anchor's frame."""
    rotation, translation = prediction.member_from_anchor_rotation, prediction.member_from_anchor_translation
    return -np.einsum("nji,nj->ni", rotation, translation)


def neighbourhood(online: Trajectory, frame: int, count: int) -> NDArray[np.int64]:
    """Up to `count` frames that have a pose around one, of the same component."""
    row = min(int(np.searchsorted(online.frames, frame)), len(online) - 1)
    frames = online.frames
    if online.component is not None:
        same = online.component == online.component[row]
        frames, row = frames[same], int(same[:row].sum())
    first = max(0, min(row - count // 2, len(frames) - count))
    return frames[first : first + count]


def loop_edges(prediction: WindowPrediction, log_scale: Estimate) -> Edges:
    """A reinserted window as edges, with translations in the scale of the anchor's window in the map.

    How well that scale is known goes with them.
    """
    scale = math.exp(log_scale.value)
    rotation, translation = prediction.member_from_anchor_rotation, prediction.member_from_anchor_translation
    n = len(prediction.members)
    good = np.flatnonzero(np.isfinite(rotation).all((1, 2)) & np.isfinite(translation).all(1))
    information: NDArray[np.float64] = np.broadcast_to(np.nan, (n, 6, 6))
    if prediction.covariance is not None:
        stretch = np.diag(np.repeat([1.0, scale], 3))
        information = np.linalg.inv(stretch @ prediction.covariance @ stretch).astype(np.float64)
    edges = Edges(
        frame_i=prediction.members,
        frame_t=np.full(n, prediction.anchor),
        rotation=rotation,
        translation=scale * translation,
        weight=prediction.confidence,
        kind=np.full(n, EdgeKind.LOOP, np.int8),
        group=np.zeros(n, np.int64),
        log_scale_ratio=np.full(n, np.nan),
        log_scale_sigma=np.full(n, log_scale.sigma),
        information=information,
    )
    return edges.select(good)
