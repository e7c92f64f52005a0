"""How well an online pose is known: relative to the frame before, in the scale that the map has there.

A window states the covariance of each of its edges, which are measured against the same structure. What its
members' places in the world are off by, all of its frames share: it cancels between neighbours, and the
spread of the members' votes is no measure of it. What is left of two frames that both were measured against a
member is their own errors, which are independent: the sum of the covariances of their edges to it. Where the
frame before is a member itself, its edge says it all.

Perturbations are those of edges, i_from_t · Exp(ω, v): they lie in the anchor's camera.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, adjoint

Float = NDArray[np.float64]


@dataclass
class MeasuredWindow:
    """The edges of one window and how well each is known, in the scale of the map."""

    anchor: int
    members: NDArray[np.int64]
    """(k,)"""
    member_from_anchor: SE3
    """(k,)"""
    covariance: Float
    """(k, 6, 6) of right perturbations"""

    @staticmethod
    def of(
        anchor: int, members: NDArray[np.int64], member_from_anchor: SE3, covariance: Float, scale: float
    ) -> MeasuredWindow:
        """From a window in its own scale, which is `scale` of the map's."""
        stretch = np.repeat([1.0, scale], 3)
        poses = SE3(member_from_anchor.rotation, scale * member_from_anchor.translation)
        return MeasuredWindow(anchor, members, poses, stretch[:, None] * covariance * stretch)

    def relative_to(self, before: MeasuredWindow | None) -> Float:
        """(6, 6) of the anchor relative to the anchor of the window before.

        Relative to the newest member where there is no such window, or none of its members is among these.
        """
        newest = int(np.argmax(self.members))
        if before is None:
            return self.covariance[newest]
        own = np.flatnonzero(self.members == before.anchor)
        if len(own):
            return self.covariance[own[0]]
        shared, rows, theirs = np.intersect1d(self.members, before.members, return_indices=True)
        if not len(shared):
            return self.covariance[newest]
        k, j = rows[-1], theirs[-1]  # the newest: nearest to both
        anchor_from_before = self.member_from_anchor[k].inverse() @ before.member_from_anchor[j]
        carry = adjoint(anchor_from_before)
        return np.asarray(self.covariance[k] + carry @ before.covariance[j] @ carry.T, np.float64)


def as_pose_covariance(covariance: Float, camera_from_world_rotation: Float) -> Float:
    """(6, 6) of a right perturbation of edges to a camera -> of its pose: rotation about the camera's axes,
    then centre in world axes."""
    axes = np.zeros((6, 6))
    # An edge is i_from_camera: what turns it on the right turns camera_from_world on the left, the other way.
    axes[:3, :3], axes[3:, 3:] = -np.eye(3), camera_from_world_rotation.T
    return np.asarray(axes @ covariance @ axes.T, np.float64)
