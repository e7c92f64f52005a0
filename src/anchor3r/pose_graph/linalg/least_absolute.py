"""Least absolute deviations over differences: min Σ_e w_e |x_i - x_t - b_e|, one fixed frame a component.

With r = b - A x, A the incidence matrix (+1 at i, -1 at t), the dual problem is max bᵀy over flows that edges
can carry: Aᵀy = 0, |y| <= w. Any such flow bounds the optimum from below, which is the certificate that both
methods return: optimum >= yᵀr.

- `interior_point` (Frisch–Newton with Mehrotra's corrector) walks inside the box |y| < w. Each iteration
  factorises a weighted Laplacian; about twenty reach any gap.
- `admm` splits |·| off and solves one Laplacian over and over: a single factorisation, many cheap iterations.

Columns of b are problems of their own. F frames, m edges, k columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel
from anchor3r.pose_graph.linalg.laplacian import Laplacian
from anchor3r.pose_graph.report import Status

AnyArray = NDArray[Any]

Float = NDArray[np.float64]

_TO_BOUNDARY = 0.9995  # part of the way to the nearest bound that a step may go
_SHORTEST_STEP = 1e-8  # below it the interior point has run out of digits
_ROUNDING = 1e-12  # of Σ w |b|: a bound as small as this is zero
_OVER_RELAXATION = 1.7  # of ADMM
_SHRINKAGE = 3.0  # ADMM's first soft threshold, in medians of |r| at the start
_ADMM_CHECK = 10  # iterations between certificates


class CertifiedSolution(NamedTuple):
    """Values and what is known about them."""

    x: Float
    """(F, k)"""
    status: Status
    iterations: int
    """Factorisations (interior point, summed over columns) or solutions (ADMM)"""
    cost: float
    gap: float
    """Certified bound on (cost - optimum) / cost"""


class _Interior(NamedTuple):
    """A flow y strictly inside its bounds and the bounds' multipliers, (m,) each."""

    above: Float
    """w + y > 0"""
    below: Float
    """w - y > 0"""
    negative: Float
    """Multiplier of the bound y >= -w; at the optimum the negative part of r"""
    positive: Float
    """Multiplier of the bound y <= w; at the optimum the positive part of r"""


def interior_point(
    laplacian: Laplacian, b: Float, weight: Float, start: Float, *, gap: float, max_iterations: int
) -> CertifiedSolution:
    """Solves every column of b (m, k) from start (F, k) to a relative gap; weight (m,) > 0."""
    columns = [
        _interior_column(laplacian, b[:, k].copy(), weight, start[:, k].copy(), gap, max_iterations)
        for k in range(b.shape[1])
    ]
    cost, bound = sum(c.cost for c in columns), sum(c.gap * c.cost for c in columns)
    status = next((c.status for c in columns if c.status is not Status.CONVERGED), Status.CONVERGED)
    x = np.stack([column.x for column in columns], 1)
    return CertifiedSolution(
        x, status, sum(c.iterations for c in columns), cost, bound / cost if cost > 0 else 0.0
    )


def _interior_column(
    laplacian: Laplacian, b: Float, weight: Float, x: Float, gap: float, max_iterations: int
) -> CertifiedSolution:
    i, t = laplacian.topology.i, laplacian.topology.t
    zero = _ROUNDING * float(weight @ np.abs(b))
    point = _interior_start(b - x[i] + x[t], weight)
    best, cost, lower = x.copy(), np.inf, -np.inf
    status, iterations = Status.MAX_ITERATIONS, 0
    while True:
        # The best x and the best flow need not belong to the same iteration.
        new_cost, new_lower = _certificate(i, t, b, weight, (point.above - point.below) / 2, x)
        lower = max(lower, new_lower)
        if new_cost < cost:
            best, cost = x.copy(), new_cost
        if cost - lower <= max(gap * cost, zero):
            status = Status.CONVERGED
        if status is not Status.MAX_ITERATIONS or iterations == max_iterations:
            break
        if _interior_step(laplacian, point, x):
            iterations += 1
        else:
            status = Status.STALLED
    return CertifiedSolution(best, status, iterations, cost, _relative_gap(cost, lower, zero))


def _relative_gap(cost: float, lower: float, zero: float) -> float:
    return (cost - lower) / cost if cost - lower > zero else 0.0


def _interior_start(residual: Float, weight: Float) -> _Interior:
    """No flow, and multipliers that fit the residuals, moved off their bounds by the average residual."""
    room = np.abs(residual).mean() + np.finfo(float).tiny
    return _Interior(
        weight.copy(), weight.copy(), np.maximum(-residual, 0) + room, np.maximum(residual, 0) + room
    )


def _interior_step(laplacian: Laplacian, point: _Interior, x: Float) -> bool:
    """One predictor–corrector step, in place; returns whether there was any progress."""
    i, t = laplacian.topology.i, laplacian.topology.t
    m, n = len(i), len(x)
    theta = 1 / (point.negative / point.above + point.positive / point.below)
    if not laplacian.factorise(theta):
        return False
    # Targets of the complementarity products: zero at first, then Mehrotra's second-order correction.
    target_negative, target_positive = -point.above * point.negative, -point.below * point.positive
    duality = -(target_negative.sum() + target_positive.sum())
    flow, negative, positive = np.empty(m), np.empty(m), np.empty(m)
    for corrected in (False, True):
        rhs = _normal_rhs(i, t, theta, point, target_negative, target_positive, n)
        dx = laplacian.solve(rhs)[:, 0]
        primal, dual = _direction(
            i, t, theta, point, target_negative, target_positive, dx, flow, negative, positive
        )
        if not corrected:
            after = _duality_after(point, flow, negative, positive, primal, dual)
            center = (after / duality) ** 3 * duality / (2 * m)
            target_negative += center - flow * negative
            target_positive += center + flow * positive
    primal, dual = min(1.0, _TO_BOUNDARY * primal), min(1.0, _TO_BOUNDARY * dual)
    if not (np.isfinite(primal + dual) and max(primal, dual) > _SHORTEST_STEP and np.isfinite(dx).all()):
        return False
    x += dual * dx
    for values, step in (
        (point.above, primal * flow), (point.below, -primal * flow),
        (point.negative, dual * negative), (point.positive, dual * positive),
    ):  # fmt: skip
        values += step
    return True


@kernel
def _normal_rhs(
    i: AnyArray, t: AnyArray, theta: AnyArray, point: _Interior, target_negative: AnyArray,
    target_positive: AnyArray, num_frames: int,
) -> AnyArray:  # fmt: skip
    """Right-hand side (F, 1) of AᵀΘA dx; the flow itself is included to undo what rounding leaks."""
    rhs = np.zeros((num_frames, 1))
    for e in range(len(i)):
        flow = 0.5 * (point.above[e] - point.below[e])
        value = flow + theta[e] * (target_negative[e] / point.above[e] - target_positive[e] / point.below[e])
        rhs[i[e], 0] += value
        rhs[t[e], 0] -= value
    return rhs


@kernel
def _direction(
    i: AnyArray, t: AnyArray, theta: AnyArray, point: _Interior, target_negative: AnyArray,
    target_positive: AnyArray, dx: AnyArray, flow: AnyArray, negative: AnyArray, positive: AnyArray,
) -> tuple[float, float]:  # fmt: skip
    """Fills the steps of flow and multipliers; returns how much of them the bounds allow."""
    primal, dual = np.inf, np.inf
    for e in range(len(i)):
        above, below = point.above[e], point.below[e]
        wanted = target_negative[e] / above - target_positive[e] / below
        df = theta[e] * (wanted - dx[i[e]] + dx[t[e]])
        dn = (target_negative[e] - point.negative[e] * df) / above
        dp = (target_positive[e] + point.positive[e] * df) / below
        if df < 0:
            primal = min(primal, -above / df)
        elif df > 0:
            primal = min(primal, below / df)
        if dn < 0:
            dual = min(dual, -point.negative[e] / dn)
        if dp < 0:
            dual = min(dual, -point.positive[e] / dp)
        flow[e], negative[e], positive[e] = df, dn, dp
    return primal, dual


@kernel
def _duality_after(
    point: _Interior, flow: AnyArray, negative: AnyArray, positive: AnyArray, primal: float, dual: float
) -> float:
    """Sum of the complementarity products after the longest allowed step."""
    primal, dual, total = min(1.0, primal), min(1.0, dual), 0.0
    for e in range(len(flow)):
        df = primal * flow[e]
        total += (point.above[e] + df) * (point.negative[e] + dual * negative[e])
        total += (point.below[e] - df) * (point.positive[e] + dual * positive[e])
    return total


@kernel
def _certificate(
    i: AnyArray, t: AnyArray, b: AnyArray, weight: AnyArray, flow: AnyArray, x: AnyArray
) -> tuple[float, float]:
    """Cost of x and a lower bound on the optimum.

    A flow that rounding has left slightly leaky is charged for its leaks times the extent of x.
    """
    cost, dual = 0.0, 0.0
    leak = np.zeros(len(x))
    for e in range(len(i)):
        r = b[e] - x[i[e]] + x[t[e]]
        cost += weight[e] * abs(r)
        dual += flow[e] * r
        leak[i[e]] += flow[e]
        leak[t[e]] -= flow[e]
    return cost, dual - np.sum(np.abs(leak)) * (x.max() - x.min())


def admm(
    laplacian: Laplacian, b: Float, weight: Float, start: Float, *, gap: float, max_iterations: int
) -> CertifiedSolution:
    """The paper's method, all columns at once; stops at the certified gap or when iterations run out."""
    i, t = laplacian.topology.i, laplacian.topology.t
    w, x = weight[:, None], start.copy()
    split = x[i] - x[t] - b  # takes the place of -r under |·|
    threshold = _SHRINKAGE * np.median(np.abs(split)) / w
    multiplier = np.zeros_like(b)
    cost, lower = float((w * np.abs(split)).sum()), 0.0
    zero = _ROUNDING * float((w * np.abs(b)).sum())
    factorised = laplacian.factorise(weight**2)
    iterations = 0
    while factorised and iterations < max_iterations and cost - lower > max(gap * cost, zero):
        x = laplacian.solve(laplacian.gather(w**2 * (b + split - multiplier)))
        multiplier += _OVER_RELAXATION * (x[i] - x[t] - b) + (1 - _OVER_RELAXATION) * split
        split = np.sign(multiplier) * np.maximum(np.abs(multiplier) - threshold, 0)
        multiplier -= split
        iterations += 1
        if iterations % _ADMM_CHECK == 0 or iterations == max_iterations:
            cost, lower = _admm_certificate(laplacian, b, weight, -w * multiplier / threshold, x)
    if cost - lower <= max(gap * cost, zero):
        status = Status.CONVERGED
    else:
        status = Status.MAX_ITERATIONS if factorised else Status.STALLED
    return CertifiedSolution(x, status, iterations, cost, _relative_gap(cost, lower, zero))


def _admm_certificate(
    laplacian: Laplacian, b: Float, weight: Float, flow: Float, x: Float
) -> tuple[float, float]:
    """Cost and lower bound from ADMM's multipliers, whose leaks are closed first by a least-squares flow."""
    i, t = laplacian.topology.i, laplacian.topology.t
    potential = laplacian.solve(laplacian.gather(flow))
    flow = flow - weight[:, None] ** 2 * (potential[i] - potential[t])
    flow /= max(1.0, float(np.max(np.abs(flow) / weight[:, None])))
    parts = [
        _certificate(i, t, b[:, k].copy(), weight, flow[:, k].copy(), x[:, k].copy())
        for k in range(b.shape[1])
    ]
    return sum(part[0] for part in parts), sum(part[1] for part in parts)
