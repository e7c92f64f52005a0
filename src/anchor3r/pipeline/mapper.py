"""The streaming loop: frames in, poses, geometry and edges out, with memory that does not grow.

For every frame the predictor measures its window; members whose pose is known vote for the frame's own pose
(`pose_graph.online`); everything goes to the store. Only the poses of recently used frames are remembered.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3
from anchor3r.io.inputs import decoding
from anchor3r.pipeline.loop_closing import LoopCloser
from anchor3r.pipeline.placing import OnlinePlacer
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.online import OnlineConfig, estimate_pose
from anchor3r.pose_graph.online_placement import OnlinePlacement
from anchor3r.pose_graph.step_covariance import MeasuredWindow, as_pose_covariance
from anchor3r.predictors.interface import Predictor, WindowPrediction, WindowStatus
from anchor3r.snapshots import Arrays, from_arrays, part, prefixed, to_arrays
from anchor3r.sources.frame import Frame
from anchor3r.sources.source import Source
from anchor3r.store import MapWriter, load_map
from anchor3r.trajectory import FramePose


@dataclass(frozen=True, kw_only=True)
class MapperConfig:
    """How the mapper turns windows into poses."""

    online: OnlineConfig = field(default_factory=OnlineConfig)
    """The median over the votes of a window's members."""
    remembered_poses: int = 64
    """Poses kept in memory, the least recently used ones go first; older ones are asked of the store."""

    def __post_init__(self) -> None:
        if self.remembered_poses < 2:
            raise ValueError(f"remembered_poses must be at least 2: {self}")


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one frame added to the map."""

    prediction: WindowPrediction
    """The measurement itself, in its own scale."""
    pose: FramePose | None
    """The frame's own pose; None while initialising or lost."""
    late_poses: tuple[FramePose, ...]
    """Poses of earlier frames that had none until this window."""
    edges: Edges
    """The window as edges of the motion graph, in the window's own scale; its group is the frame's index."""
    corrections: OnlineCorrection | None = None
    """Set where loops were closed: all poses told before have moved. `corrections.apply` to the odometry
    (`Map.odometry`) gives them anew, which is what `Map.trajectory` does. At the end of a source that was
    recorded its last frame is told once more for this."""
    placement: OnlinePlacement | None = None
    """Set where measured positions place the component, for the first time or anew: from here on
    `Map.trajectory` is in metres, with x east, y down, z north. Poses of updates stay in lengths of the map;
    `placement.apply_to_pose` brings them there."""

    @property
    def frame(self) -> int:
        return self.prediction.anchor

    @property
    def status(self) -> WindowStatus:
        return self.prediction.status

    @property
    def component(self) -> int | None:
        return None if self.pose is None else self.pose.component

    @property
    def camera_from_world(self) -> SE3 | None:
        return None if self.pose is None else self.pose.camera_from_world

    @property
    def covariance(self) -> NDArray[np.float64] | None:
        """(6, 6) as in `FramePose`"""
        return None if self.pose is None else self.pose.covariance

    @property
    def points_in_world(self) -> NDArray[np.float32] | None:
        """(h, w, 3), NaN where there is none; None without points or pose."""
        if self.pose is None or self.prediction.points_in_anchor is None:
            return None
        return self.pose.to_world(self.prediction.points_in_anchor)


@dataclass
class _State:
    """What the mapper remembers from frame to frame."""

    poses: OrderedDict[int, FramePose] = field(default_factory=OrderedDict)
    """Poses of frames by index, the least recently used ones first."""
    last: FramePose | None = None
    """The latest pose of an anchor."""
    num_components: int = 0
    """Components begun so far."""
    window: MeasuredWindow | None = None
    """The window of `last`, as far as its members have poses; None if its predictor states no covariances."""


class Mapper:
    """Maps a stream frame by frame, over any predictor, with or without a store."""

    def __init__(
        self,
        predictor: Predictor,
        store: MapWriter | None = None,
        config: MapperConfig | None = None,
        *,
        closer: LoopCloser | None = None,
        placer: OnlinePlacer | None = None,
    ) -> None:
        """closer: closes loops beside the stream, in the map that the store writes. placer: places the map by
        measured positions."""
        self.predictor, self.store, self.config = predictor, store, config or MapperConfig()
        self._closer, self._placer = closer, placer
        self._correction: OnlineCorrection | None = None
        # Twice the window: looking up one member must never push out another.
        self._capacity = max(self.config.remembered_poses, 2 * predictor.window)
        self._state = _State()

    def step(self, frame: Frame) -> Update:
        """Takes the next frame of the stream."""
        started = time.perf_counter()
        prediction = _finite(self.predictor.step(frame))
        update = self._locate(prediction)
        closing = None if self._closer is None else self._closer.due()
        poses = _poses_of(update)
        update = self._corrected(update, None if closing is None else closing.correction)
        if self._placer is not None:
            told = self._placer.observe(
                frame.timestamp_s, frame.index, poses, _poses_of(update), update.corrections
            )
            update = replace(update, placement=told)
        if self.store is not None:
            self.store.record(frame, prediction, update.edges, poses, closing, update.placement)
            if self._closer is not None and self._closer.observe(poses, update.edges, prediction.descriptor):
                self.store.commit()
                self._closer.start()
            if self.store.snapshot_due:
                self.store.save_snapshot(self.snapshot())
        if self._closer is not None:
            self._closer.pace(time.perf_counter() - started)
        return update

    def _corrected(self, update: Update, correction: OnlineCorrection | None) -> Update:
        """The update as it is told: in the world of the loops that are closed, where odometry has its own."""
        self._correction = correction or self._correction
        if self._correction is None:
            return update
        move = self._correction.apply_to_newest
        return replace(
            update,
            pose=None if update.pose is None else move(update.pose),
            late_poses=tuple(move(pose) for pose in update.late_poses),
            corrections=correction,
        )

    def run(self, source: Source, on_end: Callable[[], None] = lambda: None) -> Iterator[Update]:
        """Maps a source from where the store ends; yields an update a frame, also of those it replays.

        Where loops are closed, the last frame of a source that was recorded is told once more, corrected, if
        a last job finds that all of the stream asks for it. on_end: told before that job, which takes time.
        """
        update, first = None, self._resume(source)
        for frame in source.frames(first=first):
            update = self.step(frame)
            yield update
        last = first - 1 if update is None else update.frame
        if self.store is None or last != self.store.last_frame:
            return
        if update is not None:
            self.store.save_snapshot(self.snapshot())
        if self._closer is not None and not source.live and last >= 0:
            amended = self._end(update, on_end)
            if amended is not None:
                yield amended

    def _end(self, update: Update | None, on_end: Callable[[], None]) -> Update | None:
        """Closes loops with all of the stream; the last frame as it is told then, if that is news."""
        assert self.store is not None
        assert self._closer is not None
        search, is_done = self.store.begin_search(self._closer.identity_at_end)
        if is_done:
            return None
        on_end()
        closing = self._closer.end(search)
        correction, placement = closing.correction, None
        if correction is not None and self._placer is not None:
            placement = self._placer.amend(correction)
        self.store.end(closing, placement)
        if correction is None or update is None:
            return None
        own = None if update.pose is None else self._state.last
        pose = None if own is None else correction.apply_to_newest(own)
        return replace(update, pose=pose, late_poses=(), corrections=correction, placement=placement)

    def snapshot(self) -> Arrays:
        """The whole streaming state as arrays, so that `restore` goes on bit for bit from here."""
        state = prefixed("mapper", to_arrays(self._state))
        if self._closer is not None:
            state |= prefixed("closer", self._closer.snapshot())
        if self._placer is not None:
            state |= prefixed("placer", self._placer.snapshot())
        return state | prefixed("predictor", self.predictor.snapshot())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Puts back what `snapshot` gave."""
        self._state = from_arrays(_State, part(state, "mapper"))
        self.predictor.restore(part(state, "predictor"))
        if self._closer is not None:
            self._closer.restore(part(state, "closer"))
        if self._placer is not None:
            self._placer.restore(part(state, "placer"))

    def _resume(self, source: Source) -> int:
        """Puts back the last state in the store and returns the first frame to take.

        A live source has no past to replay: it goes on after a gap, in a new component.
        """
        if self.store is None or self.store.last_frame < 0:
            return 0
        if source.live:
            self._state.last = self.store.last_pose()
            self._state.num_components = 0 if self._state.last is None else self._state.last.component + 1
            self._rebuild_closer(self.store.last_frame)
            return self.store.last_frame + 1
        if source.seekable:
            self.store.insist_on_same(source.read(self.store.last_frame))
        snapshot = self.store.load_snapshot()
        if snapshot is None:
            return 0
        frame, state = snapshot
        with decoding(f"{self.store.folder}: the state from which the map is resumed", "make the map again"):
            self.restore(state)
        self._rebuild_closer(frame)
        return frame + 1

    def _rebuild_closer(self, frame: int) -> None:
        """Has loops go on being closed from where that stood after a frame."""
        if self.store is not None and self._closer is not None:
            with load_map(self.store.folder) as scene_map:
                self._correction = self._closer.rebuild(scene_map, frame)

    def _locate(self, prediction: WindowPrediction) -> Update:
        """The frame's pose from the votes of its members, and theirs from it where they have none yet."""
        if prediction.status is not WindowStatus.OK:
            return Update(prediction=prediction, pose=None, late_poses=(), edges=_edges(prediction, {}, None))
        known = self._known_members(prediction)
        late: list[FramePose] = []
        if known:
            pose = self._voted_pose(prediction, known)
        else:
            pose, late = self._begin_component(prediction)
        self._remember(pose)
        self._state.last = pose
        late += self._composed_poses(prediction, pose)
        edges = _edges(prediction, known, pose)
        return Update(prediction=prediction, pose=pose, late_poses=tuple(late), edges=edges)

    def _known_members(self, prediction: WindowPrediction) -> dict[int, FramePose]:
        """Poses of members by their position in the window: of those in the latest one's component."""
        found = {
            k: pose
            for k, member in enumerate(prediction.members.tolist())
            if (pose := self._lookup(member, before=prediction.anchor)) is not None
        }
        if not found:
            return {}
        component = _newest(found).component
        return {k: pose for k, pose in found.items() if pose.component == component}

    def _lookup(self, frame: int, *, before: int) -> FramePose | None:
        if frame in self._state.poses:
            self._state.poses.move_to_end(frame)
            return self._state.poses[frame]
        pose = None if self.store is None else self.store.pose(frame, before=before)
        if pose is not None:
            self._remember(pose)
        return pose

    def _remember(self, pose: FramePose) -> None:
        self._state.poses[pose.frame] = pose
        if len(self._state.poses) > self._capacity:
            self._state.poses.popitem(last=False)

    def _begin_component(self, prediction: WindowPrediction) -> tuple[FramePose, list[FramePose]]:
        """A new world, which starts at the last known pose: no measurement relates it to the one before.

        The earliest frame of the window is its gauge. Returns the anchor's pose and that of another gauge.
        """
        origin = self._state.last
        gauge = FramePose(
            frame=min([prediction.anchor, *prediction.members.tolist()]),
            rotation=np.eye(3) if origin is None else origin.rotation,
            center=np.zeros(3) if origin is None else origin.center,
            covariance=np.zeros((6, 6)),
            component=self._state.num_components,
        )
        self._state.num_components += 1
        if gauge.frame == prediction.anchor:
            return gauge, []
        self._remember(gauge)
        at = int(np.argmin(prediction.members))
        return self._voted_pose(prediction, {at: gauge}), [gauge]

    def _voted_pose(self, prediction: WindowPrediction, known: Mapping[int, FramePose]) -> FramePose:
        """The median of the votes of members (Algorithm 1), in the scale of the map."""
        which, members = list(known), list(known.values())
        log_scale, log_scale_sigma = self._log_scale(prediction, _newest(known))
        estimate = estimate_pose(
            np.array([pose.rotation for pose in members]),
            np.array([pose.center for pose in members]),
            prediction.member_from_anchor_rotation[which],
            prediction.member_from_anchor_translation[which] * math.exp(log_scale),
            frame=prediction.anchor,
            config=self.config.online,
        )
        covariance = self._covariance(prediction, which, math.exp(log_scale), estimate.rotation)
        return FramePose(
            frame=prediction.anchor,
            rotation=estimate.rotation,
            center=estimate.center,
            covariance=estimate.covariance if covariance is None else covariance,
            component=members[0].component,
            log_scale=log_scale,
            log_scale_sigma=log_scale_sigma,
        )

    def _covariance(
        self, prediction: WindowPrediction, which: list[int], scale: float, rotation: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """(6, 6) of the anchor's pose relative to the frame before, from the covariances of its own edges;
        None if the predictor states none."""
        before, self._state.window = self._state.window, None
        alone = prediction.covariance_alone
        covariance = prediction.covariance if alone is None else alone
        if covariance is None:
            return None
        edges = SE3(prediction.member_from_anchor_rotation, prediction.member_from_anchor_translation)
        self._state.window = window = MeasuredWindow.of(
            prediction.anchor, prediction.members[which], edges[which], covariance[which], scale
        )
        return as_pose_covariance(window.relative_to(before), rotation)

    def _log_scale(self, prediction: WindowPrediction, newest: FramePose) -> tuple[float, float]:
        """Log of the window's scale over the map's, and its spread, along the chain of measured ratios."""
        previous = self._state.last
        if previous is None or previous.component != newest.component:
            return newest.log_scale, newest.log_scale_sigma  # the ratio is to a window of another world
        if prediction.log_scale_sigma is None:
            return previous.log_scale, previous.log_scale_sigma
        spread = math.hypot(previous.log_scale_sigma, prediction.log_scale_sigma)
        return previous.log_scale + prediction.log_scale_ratio, spread

    def _composed_poses(self, prediction: WindowPrediction, anchor: FramePose) -> list[FramePose]:
        """T_i = T_{i←t} T_t for members that have no pose yet."""
        scale = math.exp(anchor.log_scale)
        late = []
        for k, member in enumerate(prediction.members.tolist()):
            if member in self._state.poses:
                continue
            rotation = prediction.member_from_anchor_rotation[k] @ anchor.rotation
            step = scale * prediction.member_from_anchor_translation[k]
            center = anchor.center - rotation.T @ step
            late.append(replace(anchor, frame=member, rotation=rotation, center=center, covariance=None))
            self._remember(late[-1])
        return late


def _poses_of(update: Update) -> tuple[FramePose, ...]:
    """The frame's own pose first, if it has one."""
    return update.late_poses if update.pose is None else (update.pose, *update.late_poses)


def _finite(prediction: WindowPrediction) -> WindowPrediction:
    """Without edges that are not numbers; a window that has no others has lost track."""
    rotation, translation = prediction.member_from_anchor_rotation, prediction.member_from_anchor_translation
    good = np.isfinite(rotation).all((1, 2)) & np.isfinite(translation).all(1)
    if good.all():
        return prediction
    return replace(
        prediction,
        members=prediction.members[good],
        member_from_anchor_rotation=rotation[good],
        member_from_anchor_translation=translation[good],
        confidence=prediction.confidence[good],
        covariance=None if prediction.covariance is None else prediction.covariance[good],
        covariance_alone=None if prediction.covariance_alone is None else prediction.covariance_alone[good],
        status=prediction.status if good.any() else WindowStatus.LOST,
    )


def _newest(known: Mapping[int, FramePose]) -> FramePose:
    return max(known.values(), key=lambda pose: pose.frame)


def _edges(prediction: WindowPrediction, known: Mapping[int, FramePose], anchor: FramePose | None) -> Edges:
    """The window as graph edges; of a frame without a pose there are none.

    The scale ratio that the predictor measured goes with the newest member: the others' follow from it.
    """
    n = len(prediction.members) if anchor is not None else 0
    ratio, sigma = np.full(n, np.nan), np.full(n, np.nan)
    if anchor is not None and known:
        newest = _newest(known)
        variance = anchor.log_scale_sigma**2 - newest.log_scale_sigma**2
        if variance > 0:
            at = prediction.members == newest.frame
            ratio[at], sigma[at] = anchor.log_scale - newest.log_scale, math.sqrt(variance)
    information: NDArray[np.float64] = np.broadcast_to(np.nan, (n, 6, 6))
    if n and prediction.covariance is not None:
        information = np.linalg.inv(prediction.covariance).astype(np.float64)
    return Edges(
        frame_i=prediction.members[:n],
        frame_t=np.full(n, prediction.anchor),
        rotation=prediction.member_from_anchor_rotation[:n],
        translation=prediction.member_from_anchor_translation[:n],
        weight=prediction.confidence[:n],
        kind=np.full(n, EdgeKind.WINDOW, np.int8),
        group=np.full(n, prediction.anchor),
        log_scale_ratio=ratio,
        log_scale_sigma=sigma,
        information=information,
    )
