"""What closed loops do to odometry that goes on: a similarity at every node along the frames.

Frames between two nodes of a track move with both, more with the nearer one; those after the last node move
with it alone, so that a frame that comes now needs only the track's last similarity. c nodes, n poses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import nearest_rotation, so3_exp, so3_log
from anchor3r.pose_graph.coarse import Corrections
from anchor3r.pose_graph.pose_system import PoseState
from anchor3r.trajectory import FramePose, Trajectory

_COLUMNS = 19  # frame, track, component, log scale, source, target, rotation


@dataclass(frozen=True)
class OnlineCorrection:
    """Moves odometry, track by track, to where loops that were closed online put it."""

    frames: NDArray[np.int64]
    """(c,) frame that each node stands at, ascending"""
    track: NDArray[np.int64]
    """(c,) component of the odometry that the node belongs to"""
    component: NDArray[np.int64]
    """(c,) component of the corrected poses: the same for tracks that loops join"""
    moves: Corrections
    """(c,) of the odometry around each node"""

    @staticmethod
    def between(odometry: Trajectory, corrected: Trajectory) -> OnlineCorrection:
        """What takes poses to others of the same frames: with a node at each."""
        assert odometry.component is not None
        assert odometry.log_scale is not None
        assert corrected.component is not None
        assert corrected.log_scale is not None
        _, first, label = np.unique(corrected.component, return_index=True, return_inverse=True)
        turn = np.swapaxes(corrected.rotation, 1, 2) @ odometry.rotation
        growth = corrected.log_scale - odometry.log_scale
        moves = Corrections(turn, odometry.center, corrected.center, growth)
        return OnlineCorrection(odometry.frames, odometry.component, odometry.component[first[label]], moves)

    def apply(self, odometry: Trajectory) -> Trajectory:
        """The corrected poses; a track without a node stays as it is."""
        assert odometry.component is not None
        assert odometry.log_scale is not None
        rotation, center = odometry.rotation.copy(), odometry.center.copy()
        log_scale, component = odometry.log_scale.copy(), odometry.component.copy()
        covariance = None if odometry.covariance is None else odometry.covariance.copy()
        for track in np.unique(self.track):
            rows, nodes = np.flatnonzero(odometry.component == track), np.flatnonzero(self.track == track)
            moves = self._between(nodes, odometry.frames[rows], odometry.center[rows])
            rotation[rows] = odometry.rotation[rows] @ np.swapaxes(moves.rotation, 1, 2)
            center[rows], component[rows] = moves.target, self.component[nodes[0]]
            log_scale[rows] += moves.log_scale
            if covariance is not None:
                axes = np.zeros((len(rows), 6, 6))
                axes[:, :3, :3] = np.eye(3)  # of the camera, which do not change
                axes[:, 3:, 3:] = np.exp(moves.log_scale)[:, None, None] * moves.rotation
                covariance[rows] = axes @ covariance[rows] @ np.swapaxes(axes, 1, 2)
        return replace(
            odometry, rotation=rotation, center=center, log_scale=log_scale, component=component,
            covariance=covariance,
        )  # fmt: skip

    def apply_to_newest(self, pose: FramePose) -> FramePose:
        """The corrected pose of a frame after the last node of its track."""
        nodes = np.flatnonzero(self.track == pose.component)
        if not len(nodes):
            return pose
        last = self.moves.select(nodes[-1:])
        covariance = pose.covariance
        if covariance is not None:
            axes = np.eye(6)
            axes[3:, 3:] = np.exp(last.log_scale[0]) * last.rotation[0]
            covariance = axes @ covariance @ axes.T
        return replace(
            pose,
            rotation=pose.rotation @ last.rotation[0].T,
            center=last.apply(pose.center[None])[0],
            covariance=covariance,
            component=int(self.component[nodes[-1]]),
            log_scale=pose.log_scale + float(last.log_scale[0]),
        )

    def heads(self) -> OnlineCorrection:
        """Only the last node of every track: all that frames to come need."""
        return self._select(np.sort([np.flatnonzero(self.track == track)[-1] for track in set(self.track)]))

    def _select(self, which: NDArray[np.int64]) -> OnlineCorrection:
        columns = self.frames[which], self.track[which], self.component[which]
        return OnlineCorrection(*columns, self.moves.select(which))

    def _between(
        self, nodes: NDArray[np.int64], frames: NDArray[np.int64], center: NDArray[np.float64]
    ) -> Corrections:
        """What odometry at frames (k,) of one track is moved by, its nodes given."""
        at = self.frames[nodes]
        here = np.clip(np.searchsorted(at, frames, side="right") - 1, 0, len(at) - 1)
        there = np.minimum(here + 1, len(at) - 1)
        part = np.clip((frames - at[here]) / np.maximum(at[there] - at[here], 1), 0, 1)
        one, other = self.moves.select(nodes[here]), self.moves.select(nodes[there])
        turn = so3_exp(part[:, None] * so3_log(other.rotation @ np.swapaxes(one.rotation, 1, 2)))
        target = (1 - part)[:, None] * one.apply(center) + part[:, None] * other.apply(center)
        log_scale = (1 - part) * one.log_scale + part * other.log_scale
        return Corrections(turn @ one.rotation, center, target, log_scale)

    def to_bytes(self) -> bytes:
        """The correction as doubles, 19 a node."""
        moves = self.moves
        columns = [self.frames, self.track, self.component, moves.log_scale]
        table = np.concatenate(
            [np.stack(columns, 1), moves.source, moves.target, moves.rotation.reshape(-1, 9)], 1
        )
        return table.astype("<f8").tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> OnlineCorrection:
        """What `to_bytes` gave; a ValueError of anything else."""
        table = np.frombuffer(data, "<f8").reshape(-1, _COLUMNS)
        if not np.isfinite(table).all():
            raise ValueError("a correction is not a number")
        frames, track, component = table[:, :3].T.astype(np.int64)
        rotation = table[:, 10:].reshape(-1, 3, 3)
        return OnlineCorrection(
            frames, track, component, Corrections(rotation, table[:, 4:7], table[:, 7:10], table[:, 3])
        )


def smoothly_moved(poses: PoseState, target: PoseState, track: NDArray[np.int64], reach: int) -> PoseState:
    """Poses (n,) of consecutive frames moved to where `target` has them, in the mean over their neighbours.

    Each frame is moved by the similarities that take frames nearer than `reach` to their targets, the nearer
    ones counting more. track: (n,) component of the poses, each of which is moved by itself.
    """
    turn = np.swapaxes(target.rotation, 1, 2) @ poses.rotation
    growth = target.log_scale - poses.log_scale
    weight, center, mean_growth = np.zeros(len(track)), np.zeros((len(track), 3)), np.zeros(len(track))
    mean_turn = np.zeros((len(track), 3, 3))
    for offset in range(1 - reach, reach):
        k = np.arange(max(0, -offset), min(len(track), len(track) - offset))
        k = k[track[k] == track[k + offset]]
        by, share = k + offset, 1 - abs(offset) / reach
        arm = (turn[by] @ (poses.center[k] - poses.center[by])[..., None])[..., 0]
        center[k] += share * (target.center[by] + np.exp(growth[by])[:, None] * arm)
        mean_turn[k] += share * turn[by]
        mean_growth[k] += share * growth[by]
        weight[k] += share
    return PoseState(
        poses.rotation @ np.swapaxes(nearest_rotation(mean_turn), 1, 2),
        center / weight[:, None],
        poses.log_scale + mean_growth / weight,
    )
