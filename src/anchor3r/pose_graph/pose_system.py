"""The linear algebra of joint pose refinement: residuals, gradient and Gauss–Newton matrix of the edges.

A frame's unknowns move its rotation on the right, R ← R Exp(ω), its centre, c ← c + γ, and, if scales are
free, the log of its window's scale, s ← s + σ: a block of b = 6 or 7 scalars, all in world axes. Of edge
(i, t) only the relative motion y (6,) matters, with d = c_t - c_i and u = exp(-s_t), 1 if scales are fixed:

    y = [ω_i - ω_t,  u (γ_t - γ_i) + ω_i × u d - u d σ_t]

so that all an edge adds is a metric on y: two numbers (rotation, translation) where its error is isotropic,
a 6 × 6 matrix where it came with an information matrix (zeros leave the edge out). The translation error is
in the window's own scale.

The same formulas serve frames that move together as a rigid (or similar) node: frame i at offset o from its
node's origin moves by γ_i = γ - ω × o + σ o. n frames, m edges, p pairs of nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3
from anchor3r.kernels import kernel
from anchor3r.pose_graph.linalg import so3

Float = NDArray[np.float64]
Index = NDArray[np.integer]


_NEGLIGIBLE = 1e-14  # terms of a series that starts with 1
_End = tuple[float, so3.Vector, float, so3.Vector]
"""What moving the node of an edge's end does to y: the sign of its turn ω, and p, u, g of its translation
p × ω + u γ + σ g."""


class PoseEdges(NamedTuple):
    """The measurements."""

    i: Index
    """(m,) row of the member"""
    t: Index
    """(m,) row of the anchor"""
    rotation: Float
    """(m, 3, 3) i_from_t"""
    translation: Float
    """(m, 3) i_from_t"""


class PoseState(NamedTuple):
    """The unknowns."""

    rotation: Float
    """(n, 3, 3) camera_from_world"""
    center: Float
    """(n, 3)"""
    log_scale: Float
    """(n,) log of each window's scale"""

    @staticmethod
    def of(poses: SE3, log_scale: Float | None = None) -> PoseState:
        """The state of camera_from_world (n,); scales are 1 unless given."""
        if log_scale is None:
            log_scale = np.zeros(len(poses))
        return PoseState(
            np.ascontiguousarray(poses.rotation, np.float64),
            np.ascontiguousarray(poses.center(), np.float64),
            np.asarray(log_scale),
        )

    def poses(self) -> SE3:
        """camera_from_world (n,)"""
        return SE3(self.rotation, -(self.rotation @ self.center[..., None])[..., 0])


class Nodes(NamedTuple):
    """Frames grouped to nodes that move together."""

    node: Index
    """(n,) node of each frame"""
    offset: Float
    """(n, 3) of each frame from its node's origin, world axes"""


@kernel
def robust_weights(square: Float, width_sq: float, weight: Float) -> float:
    """Fills Geman–McClure weights (m,) of squared errors (m,), 1 if the width is inf; returns the cost."""
    cost = 0.0
    for e in range(len(square)):
        shrink = 1.0 if np.isinf(width_sq) else width_sq / (width_sq + square[e])
        weight[e] = shrink * shrink
        cost += 0.5 * shrink * square[e]
    return cost


@kernel
def squared_errors(edges: PoseEdges, state: PoseState, information: Float, square: Float) -> None:
    """Fills square (m,) with every edge's squared error under its information, (m, 2) or (m, 6, 6)."""
    for e in range(len(edges.i)):
        if information.ndim == 2:
            r, x = _isotropic_error(edges, state, e)
            square[e] = information[e, 0] * so3.norm_sq(r) + information[e, 1] * so3.norm_sq(x)
        else:
            r, x = _twist_error(edges, state, e)
            square[e] = _quadratic_form(information[e], r, x)


@kernel
def error_lengths(edges: PoseEdges, state: PoseState, angle: Float, distance: Float) -> None:
    """Fills angle (m,) in radians and distance (m,) in the windows' scales with the sizes of the errors."""
    for e in range(len(edges.i)):
        r, x = _isotropic_error(edges, state, e)
        angle[e], distance[e] = np.sqrt(so3.norm_sq(r)), np.sqrt(so3.norm_sq(x))


@kernel
def _isotropic_error(edges: PoseEdges, state: PoseState, e: int) -> tuple[so3.Vector, so3.Vector]:
    """Log(R_tᵀ R̂ᵀ R_i) and u d - R_iᵀ t̂, world axes."""
    i, t = edges.i[e], edges.t[e]
    rotation_i, rotation_t = so3.load33(state.rotation[i]), so3.load33(state.rotation[t])
    predicted = so3.mul(so3.load33(edges.rotation[e]), rotation_t)
    v = so3.apply_t(rotation_i, so3.load3(edges.translation[e]))
    d, _ = _scaled_displacement(state, i, t)
    return so3.log(so3.mul_tn(predicted, rotation_i)), (d[0] - v[0], d[1] - v[1], d[2] - v[2])


@kernel
def _scaled_displacement(state: PoseState, i: int | np.int64, t: int | np.int64) -> tuple[so3.Vector, float]:
    """u d and u"""
    u, c = np.exp(-state.log_scale[t]), state.center
    return (u * (c[t, 0] - c[i, 0]), u * (c[t, 1] - c[i, 1]), u * (c[t, 2] - c[i, 2])), u


@kernel
def _twist_error(edges: PoseEdges, state: PoseState, e: int) -> tuple[so3.Vector, so3.Vector]:
    """The twist Log(T̂⁻¹ T_i T_t⁻¹), rotation and translation, in the anchor's axes."""
    i, t = edges.i[e], edges.t[e]
    rotation_i, rotation_t = so3.load33(state.rotation[i]), so3.load33(state.rotation[t])
    measured = so3.load33(edges.rotation[e])
    r = so3.log(so3.mul(so3.mul_tn(measured, rotation_i), so3.transpose(rotation_t)))
    moved = so3.apply(rotation_i, _scaled_displacement(state, i, t)[0])
    hat = edges.translation[e]
    x = so3.apply_t(measured, (moved[0] - hat[0], moved[1] - hat[1], moved[2] - hat[2]))
    return r, so3.apply_t(so3.right_jacobian_inverse(r), x)


@kernel
def _quadratic_form(matrix: Float, r: so3.Vector, x: so3.Vector) -> float:
    z = (r[0], r[1], r[2], x[0], x[1], x[2])
    total = 0.0
    for a in range(6):
        for b in range(6):
            total += z[a] * matrix[a, b] * z[b]
    return total


@kernel
def linearise(
    edges: PoseEdges, state: PoseState, information: Float, weight: Float, metric: Float, gradient: Float
) -> None:
    """Fills metric (shaped like information) of the relative motions, and the gradient (n, b) of the cost."""
    gradient[:] = 0
    force, inverse, power = np.empty(6), np.empty((6, 6)), np.empty((3, 6, 6))
    for e in range(len(edges.i)):
        i, t, w = edges.i[e], edges.t[e], weight[e]
        if information.ndim == 2:
            metric[e, 0], metric[e, 1] = w * information[e, 0], w * information[e, 1]
            r, x = _isotropic_error(edges, state, e)
            for k in range(3):
                force[k], force[3 + k] = metric[e, 0] * r[k], metric[e, 1] * x[k]
        else:
            r, x = _twist_error(edges, state, e)
            _twist_jacobian(r, x, so3.load33(state.rotation[t]), power, inverse)
            _congruence(information[e], inverse, w, power[0], metric[e])
            for k in range(6):
                force[k] = 0.0
                for a in range(6):
                    force[k] += w * power[0, k, a] * (r[a] if a < 3 else x[a - 3])
        d, u = _scaled_displacement(state, i, t)
        _spread(force, i, t, d, u, gradient)


@kernel
def _spread(force: Float, i: int, t: int, d: so3.Vector, u: float, out: Float) -> None:
    """Adds (∂y/∂unknowns)ᵀ force to out (n, b)."""
    x, y, z = force[3], force[4], force[5]
    out[i, 0] += force[0] + d[1] * z - d[2] * y
    out[i, 1] += force[1] + d[2] * x - d[0] * z
    out[i, 2] += force[2] + d[0] * y - d[1] * x
    for k in range(3):
        out[t, k] -= force[k]
        out[i, 3 + k] -= u * force[3 + k]
        out[t, 3 + k] += u * force[3 + k]
    if out.shape[1] == 7:
        out[t, 6] -= d[0] * x + d[1] * y + d[2] * z


@kernel
def _twist_jacobian(r: so3.Vector, x: so3.Vector, rotation_t: so3.Matrix, power: Float, out: Float) -> None:
    """∂(twist error)/∂y = J_r⁻¹ diag(R_t, R_t), with J_r⁻¹ = Σ Bₙ adⁿ / n! (accurate to 1e-3 even at π)."""
    ad, even, scratch = power[0], power[1], power[2]
    ad[:] = 0
    for a in range(2):
        s = 3 * a
        ad[s, s + 1], ad[s, s + 2], ad[s + 1, s + 2] = -r[2], r[1], -r[0]
        ad[s + 1, s], ad[s + 2, s], ad[s + 2, s + 1] = r[2], -r[1], r[0]
    ad[3, 1], ad[3, 2], ad[4, 2] = -x[2], x[1], -x[0]
    ad[4, 0], ad[5, 0], ad[5, 1] = x[2], -x[1], x[0]
    _multiply(ad, ad, even)
    square = even.copy()
    out[:] = 0.5 * ad + even / 12
    for factor in (-1 / 720, 1 / 30240, -1 / 1209600):
        if np.abs(even).max() * np.abs(square).max() < _NEGLIGIBLE:  # nearly always: errors are small
            break
        _multiply(even, square, scratch)
        even[:] = scratch
        out += factor * even
    for k in range(6):
        out[k, k] += 1
    scratch[:] = 0
    for a in range(3):
        for b in range(3):
            scratch[a, b] = scratch[3 + a, 3 + b] = rotation_t[3 * a + b]
    _multiply(out, scratch, even)
    out[:] = even


@kernel
def _multiply(a: Float, b: Float, out: Float) -> None:
    for row in range(6):
        for column in range(6):
            total = 0.0
            for k in range(6):
                total += a[row, k] * b[k, column]
            out[row, column] = total


@kernel
def _congruence(middle: Float, outer: Float, w: float, half: Float, out: Float) -> None:
    """half = outerᵀ middle, out = w outerᵀ middle outer."""
    _multiply(outer.T, middle, half)
    _multiply(half, outer, out)
    out *= w


@kernel
def apply_matrix(edges: PoseEdges, state: PoseState, metric: Float, x: Float, out: Float) -> None:
    """Adds H x to out; x, out (n, b). The matrix itself is never stored."""
    y, force = np.empty(6), np.empty(6)
    is_free = x.shape[1] == 7
    for e in range(len(edges.i)):
        i, t = edges.i[e], edges.t[e]
        d, u = _scaled_displacement(state, i, t)
        s = x[t, 6] if is_free else 0.0
        for k in range(3):
            y[k] = x[i, k] - x[t, k]
            y[3 + k] = u * (x[t, 3 + k] - x[i, 3 + k]) - d[k] * s
        y[3] += x[i, 1] * d[2] - x[i, 2] * d[1]
        y[4] += x[i, 2] * d[0] - x[i, 0] * d[2]
        y[5] += x[i, 0] * d[1] - x[i, 1] * d[0]
        if metric.ndim == 2:
            for k in range(3):
                force[k], force[3 + k] = metric[e, 0] * y[k], metric[e, 1] * y[3 + k]
        else:
            for a in range(6):
                force[a] = 0.0
                for k in range(6):
                    force[a] += metric[e, a, k] * y[k]
        _spread(force, i, t, d, u, out)


@kernel
def assemble(
    edges: PoseEdges,
    state: PoseState,
    metric: Float,
    nodes: Nodes,
    slot: Index,
    diagonal: Float,
    pairs: Float,
) -> None:
    """Adds every edge to the block matrix of the nodes: diagonal (nodes, b, b), pairs (p, b, b).

    slot (m,): the pair of each edge, whose block is H[low, high]; -1 for an edge whose pair is left out.
    """
    b = diagonal.shape[1]
    work = np.zeros((4, 6, b))
    for e in range(len(edges.i)):
        i, t = edges.i[e], edges.t[e]
        node_i, node_t = nodes.node[i], nodes.node[t]
        if node_i == node_t or (metric.ndim == 2 and metric[e, 0] == 0):
            continue
        end_i, end_t = _ends(state, i, t, so3.load3(nodes.offset[i]), so3.load3(nodes.offset[t]))
        if metric.ndim != 2:
            _weigh_ends(metric[e], end_i, end_t, work)
        _add_block(metric, e, end_i, end_i, work[0], work[2], diagonal[node_i])
        _add_block(metric, e, end_t, end_t, work[1], work[3], diagonal[node_t])
        if slot[e] >= 0:
            if node_i < node_t:
                _add_block(metric, e, end_i, end_t, work[0], work[3], pairs[slot[e]])
            else:
                _add_block(metric, e, end_t, end_i, work[1], work[2], pairs[slot[e]])


@kernel
def assemble_band(edges: PoseEdges, state: PoseState, metric: Float, reach: int, band: Float) -> None:
    """Adds H to band (n b, (reach + 1) b): column by column, each from the diagonal down.

    Edges that span more than `reach` frames add to the diagonal blocks only.
    """
    b = band.shape[1] // (reach + 1)
    here = (0.0, 0.0, 0.0)
    work, block, diagonal = np.zeros((4, 6, b)), np.zeros((b, b)), np.zeros((len(state.center), b, b))
    for e in range(len(edges.i)):
        i, t = np.int64(edges.i[e]), np.int64(edges.t[e])
        end_i, end_t = _ends(state, i, t, here, here)
        if metric.ndim != 2:
            _weigh_ends(metric[e], end_i, end_t, work)
        _add_block(metric, e, end_i, end_i, work[0], work[2], diagonal[i])
        _add_block(metric, e, end_t, end_t, work[1], work[3], diagonal[t])
        if abs(i - t) <= reach:
            block[:] = 0
            if i < t:
                _add_block(metric, e, end_i, end_t, work[0], work[3], block)
            else:
                _add_block(metric, e, end_t, end_i, work[1], work[2], block)
            low, shift = min(i, t) * b, abs(i - t) * b
            for x in range(b):
                for y in range(b):
                    band[low + x, shift + y - x] += block[x, y]
    for n in range(len(diagonal)):
        for x in range(b):
            for y in range(x, b):
                band[n * b + x, y - x] += diagonal[n, x, y]


@kernel
def _ends(
    state: PoseState, i: int | np.int64, t: int | np.int64, offset_i: so3.Vector, offset_t: so3.Vector
) -> tuple[_End, _End]:
    """How the relative motion y of an edge follows the nodes of its ends, of which frames are offset."""
    d, u = _scaled_displacement(state, i, t)
    o, q = offset_i, offset_t
    grown_i = (-u * o[0], -u * o[1], -u * o[2])
    arm_i = (d[0] + u * o[0], d[1] + u * o[1], d[2] + u * o[2])
    grown_t = (u * q[0] - d[0], u * q[1] - d[1], u * q[2] - d[2])
    arm_t = (-u * q[0], -u * q[1], -u * q[2])
    return (1.0, arm_i, -u, grown_i), (-1.0, arm_t, u, grown_t)


@kernel
def _add_block(
    metric: Float, e: int, left: _End, right: _End, jacobian: Float, weighed: Float, out: Float
) -> None:
    """out += ∂y/∂leftᵀ metric ∂y/∂right; where the metric is a matrix, both factors are at hand already."""
    if metric.ndim != 2:
        _add_product(jacobian, weighed, out)
        return
    c = metric[e, 1]
    p, q, u, v, g, h = left[1], right[1], left[2], right[2], left[3], right[3]
    # -[p] and -[q] are the turns' share of the translation: [p]ᵀ [q] = p·q I - q pᵀ
    turned = metric[e, 0] * left[0] * right[0] + c * (p[0] * q[0] + p[1] * q[1] + p[2] * q[2])
    for a in range(3):
        for k in range(3):
            out[a, k] -= c * q[a] * p[k]
        out[a, a] += turned
        out[3 + a, 3 + a] += c * u * v
    for a, k, r in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):  # ε_akr = 1
        out[a, 3 + k] -= c * v * p[r]
        out[k, 3 + a] += c * v * p[r]
        out[3 + a, k] += c * u * q[r]
        out[3 + k, a] -= c * u * q[r]
        if out.shape[0] == 7:
            out[a, 6] += c * (p[k] * h[r] - p[r] * h[k])
            out[6, a] += c * (q[k] * g[r] - q[r] * g[k])
            out[3 + a, 6] += c * u * h[a]
            out[6, 3 + a] += c * v * g[a]
            out[6, 6] += c * g[a] * h[a]


@kernel
def _weigh_ends(metric: Float, end_i: _End, end_t: _End, work: Float) -> None:
    """Fills work (4, 6, b) with ∂y/∂i, ∂y/∂t and the metric (6, 6) times each."""
    _jacobian(end_i, work[0])
    _jacobian(end_t, work[1])
    for k in range(2):
        for a in range(6):
            for column in range(work.shape[2]):
                total = 0.0
                for c in range(6):
                    total += metric[a, c] * work[k, c, column]
                work[2 + k, a, column] = total


@kernel
def _jacobian(end: _End, out: Float) -> None:
    """∂y/∂(node of an end), (6, b)"""
    sign, p, u, g = end
    for k in range(3):
        out[k, k], out[3 + k, 3 + k] = sign, u
        if out.shape[1] == 7:
            out[3 + k, 6] = g[k]
    out[3, 1], out[3, 2], out[4, 0] = p[2], -p[1], -p[2]
    out[4, 2], out[5, 0], out[5, 1] = p[0], p[1], -p[0]


@kernel
def _add_product(left: Float, right: Float, out: Float) -> None:
    """out += leftᵀ right"""
    for a in range(6):
        for row in range(left.shape[1]):
            f = left[a, row]
            if f != 0:
                for column in range(right.shape[1]):
                    out[row, column] += f * right[a, column]


def moved(state: PoseState, step: Float) -> PoseState:
    """The state after a step (n, b)."""
    rotation, center = np.empty_like(state.rotation), state.center + step[:, 3:6]
    _turn(state.rotation, np.ascontiguousarray(step[:, :3]), rotation)
    return PoseState(
        rotation, center, state.log_scale + step[:, 6] if step.shape[1] == 7 else state.log_scale
    )


@kernel
def _turn(rotation: Float, step: Float, out: Float) -> None:
    for n in range(len(rotation)):
        turned = so3.mul(so3.load33(rotation[n]), so3.exp(so3.load3(step[n])))
        so3.store33(out[n], so3.orthonormalised(turned))
