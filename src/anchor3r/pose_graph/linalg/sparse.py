"""Sparse Cholesky factorisation of block matrices that live on a graph.

The matrix has one b × b block a node and one a pair of nodes that share an edge. What depends only on the
graph is analysed once (`symbolic`); new values are factorised many times. The factorisation is multifrontal:
each supernode's dense front is eliminated in one go, and what is left of it is added to its parent's.

Symbols: n nodes, p pairs, s supernodes, b block size, k right-hand sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel
from anchor3r.pose_graph.linalg.symbolic import Analysis, Index, analyse, fill_reducing_order

AnyArray = NDArray[Any]

__all__ = ["Analysis", "Cholesky", "analyse", "fill_reducing_order"]

_UNROLLED = 8  # rows of a front that are taken together in the innermost loops
_STRIP = 64  # rows of a front whose effect on the rest of it is taken together
_TILE = 48  # rows of a front that stay in the cache meanwhile


class Cholesky:
    """L Lᵀ = A for changing values on one graph; keeps its memory from one factorisation to the next."""

    def __init__(self, analysis: Analysis, block_size: int = 1) -> None:
        self.analysis = analysis
        self.block_size = block_size
        self._factor = np.empty(analysis.panel_start[-1] * block_size**2)
        self._stack = np.empty(max(1, analysis.stack_size) * block_size**2)

    def factorise(self, diagonal: NDArray[np.float64], pairs: NDArray[np.float64]) -> bool:
        """Factorises the matrix with blocks diagonal (n, b, b) and pairs (p, b, b); b = 1 may drop its axes.

        Returns whether the matrix is positive definite; if not, there is nothing to solve with.
        """
        b = self.block_size
        n, p = len(self.analysis.order), self.analysis.num_pairs
        return bool(
            _factorise(
                self.analysis, diagonal.reshape(n, b, b), pairs.reshape(p, b, b), self._factor, self._stack
            )
        )

    def solve(self, rhs: NDArray[np.float64]) -> NDArray[np.float64]:
        """A⁻¹ rhs; rhs (n, b, k), where b = 1 may drop its axis."""
        n, b = len(self.analysis.order), self.block_size
        k = rhs.size // max(1, n * b)
        return _solve(self.analysis, b, self._factor, rhs.reshape(n * b, k)).reshape(rhs.shape)

    def inverse_diagonal(self) -> NDArray[np.float64]:
        """(n, b, b) the blocks of A⁻¹ on its diagonal, for about the cost of three factorisations."""
        out = np.empty((len(self.analysis.order), self.block_size, self.block_size))
        _inverse_diagonal(self.analysis, self.block_size, self._factor, out)
        return out


@kernel
def _factorise(
    analysis: Analysis, diagonal: AnyArray, pairs: AnyArray, factor: AnyArray, stack: AnyArray
) -> bool:
    """Supernodes in postorder; the updates of a supernode's children are the topmost ones on the stack."""
    size = diagonal.shape[1]
    num = len(analysis.parent)
    top = 0
    first_child = np.full(num, -1)  # children are chained through next_child, the last one first
    next_child = np.full(num, -1)
    update_start = np.empty(num, np.int64)
    index = np.empty(0, np.int64)
    for s in range(num):
        height = size * (analysis.row_start[s + 1] - analysis.row_start[s])
        panel = _panel(analysis, s, size, factor)
        update = stack[top : top + height * height].reshape(height, height)
        panel[:] = 0
        update[:] = 0
        _assemble_values(analysis, s, size, diagonal, pairs, panel)
        base, child = top, first_child[s]
        while child >= 0:
            child_height = size * (analysis.row_start[child + 1] - analysis.row_start[child])
            base = update_start[child]
            if len(index) < child_height:
                index = np.empty(2 * child_height, np.int64)
            _expand(analysis.relative, analysis.row_start[child], child_height, size, index)
            theirs = stack[base : base + child_height * child_height].reshape(child_height, child_height)
            _extend_add(theirs, index, panel, update)
            child = next_child[child]
        if not _eliminate(panel, update):
            return False
        update_start[s] = base
        if base < top:
            for at in range(height * height):
                stack[base + at] = stack[top + at]
        top = base + height * height
        if analysis.parent[s] >= 0:
            next_child[s] = first_child[analysis.parent[s]]
            first_child[analysis.parent[s]] = s
    return True


@kernel
def _assemble_values(
    analysis: Analysis, s: int, size: int, diagonal: AnyArray, pairs: AnyArray, panel: AnyArray
) -> None:
    """Adds the matrix' own blocks to a front. Panels hold the upper triangle, as rows of Lᵀ."""
    first = analysis.column_start[s]
    for column in range(first, analysis.column_start[s + 1]):
        block, at = diagonal[analysis.order[column]], size * (column - first)
        for x in range(size):
            for y in range(size):
                panel[at + x, at + y] += block[x, y]
    for at in range(analysis.pair_start[s], analysis.pair_start[s + 1]):
        pair = analysis.pair_list[at]
        row, column = size * analysis.pair_front[pair, 0], size * analysis.pair_front[pair, 1]
        transposed = analysis.pair_front[pair, 2]
        for x in range(size):
            for y in range(size):
                panel[row + x, column + y] += pairs[pair, y, x] if transposed else pairs[pair, x, y]


@kernel
def _expand(relative: Index, start: int, height: int, size: int, index: Index) -> None:
    """Places of scalar rows from those of block rows."""
    for r in range(height // size):
        for x in range(size):
            index[r * size + x] = relative[start + r] * size + x


@kernel
def _extend_add(theirs: AnyArray, index: Index, panel: AnyArray, update: AnyArray) -> None:
    """Adds a child's update (upper triangle) to the front at the given places."""
    width, last = len(panel), len(theirs) - 1
    for row in range(len(theirs)):
        source, at = theirs[row, row:], index[row]
        target, shift = (panel[at], 0) if at < width else (update[at - width], width)
        if index[last] - at == last - row:  # a run of neighbours: no need to look places up
            run = target[at - shift :]
            for k in range(len(source)):
                run[k] += source[k]
        else:
            places = index[row : last + 1]
            for k in range(len(source)):
                target[places[k] - shift] += source[k]


@kernel
def _eliminate(panel: AnyArray, update: AnyArray) -> bool:
    """Partial Cholesky of a front: its panel becomes rows of Lᵀ, its update what is left."""
    width, total = panel.shape
    scratch = np.empty((_UNROLLED, total))
    for first in range(0, width, _STRIP):
        end = min(first + _STRIP, width)
        for start in range(first, end, _UNROLLED):
            stop = min(start + _UNROLLED, end)
            if not _eliminate_rows(panel[start:stop], start):
                return False
            _subtract_gram(panel[start:stop], stop, panel[:end], stop, scratch)
        _subtract_gram(panel[first:end], end, panel, end, scratch)
    _subtract_gram(panel, width, update, 0, scratch)
    return True


@kernel
def _eliminate_rows(rows: AnyArray, first: int) -> bool:
    """The few rows whose pivots start at column `first`, one after the other."""
    for k in range(len(rows)):
        row = rows[k, first + k :]
        if not row[0] > 0:
            return False
        scale = 1 / np.sqrt(row[0])
        for x in range(len(row)):
            row[x] *= scale
        for later in range(k + 1, len(rows)):
            source, target = rows[k, first + later :], rows[later, first + later :]
            f = source[0]
            for x in range(len(target)):
                target[x] -= f * source[x]
    return True


@kernel
def _subtract_gram(strip: AnyArray, first: int, target: AnyArray, origin: int, scratch: AnyArray) -> None:
    """Subtracts stripᵀ strip, from column `first` on, from the upper triangle of target[origin:, origin:].

    A tile of target rows that fits into the cache takes all of the strip, eight rows at a time, before the
    next tile does; `scratch` fills up the last eight with zeros. BLAS would be up to twice as fast on the
    largest fronts, but on all others its threads fight each other.
    """
    whole = len(strip) // _UNROLLED * _UNROLLED
    if whole < len(strip):
        for k in range(_UNROLLED):
            for column in range(strip.shape[1]):
                scratch[k, column] = strip[whole + k, column] if whole + k < len(strip) else 0.0
    for low in range(origin, len(target), _TILE):
        high = min(low + _TILE, len(target))
        for k in range(0, whole, _UNROLLED):
            _subtract_eight(strip[k : k + _UNROLLED], first - origin, target, low, high)
        if whole < len(strip):
            _subtract_eight(scratch, first - origin, target, low, high)


@kernel
def _subtract_eight(rows: AnyArray, shift: int, target: AnyArray, low: int, high: int) -> None:
    """Subtracts the products of eight rows from target rows low … high - 1.

    Two target rows at a time keep the registers full; what is written below the diagonal is never read. The
    inner loops run from 0 over slices because only then does the compiler vectorise them.
    """
    for row in range(low, high, 2):
        at = row + shift
        a, b, c, d = rows[0, at:], rows[1, at:], rows[2, at:], rows[3, at:]
        e, f, g, h = rows[4, at:], rows[5, at:], rows[6, at:], rows[7, at:]
        out = target[row, row:]
        a0, b0, c0, d0, e0, f0, g0, h0 = a[0], b[0], c[0], d[0], e[0], f[0], g[0], h[0]
        if row + 1 == high:
            for x in range(len(out)):
                out[x] -= (
                    a0 * a[x] + b0 * b[x] + c0 * c[x] + d0 * d[x]
                    + e0 * e[x] + f0 * f[x] + g0 * g[x] + h0 * h[x]
                )  # fmt: skip
            break
        below = target[row + 1, row:]
        a1, b1, c1, d1, e1, f1, g1, h1 = a[1], b[1], c[1], d[1], e[1], f[1], g[1], h[1]
        for x in range(len(out)):
            ax, bx, cx, dx, ex, fx, gx, hx = a[x], b[x], c[x], d[x], e[x], f[x], g[x], h[x]
            out[x] -= a0 * ax + b0 * bx + c0 * cx + d0 * dx + e0 * ex + f0 * fx + g0 * gx + h0 * hx
            below[x] -= a1 * ax + b1 * bx + c1 * cx + d1 * dx + e1 * ex + f1 * fx + g1 * gx + h1 * hx


@kernel
def _solve(analysis: Analysis, size: int, factor: AnyArray, rhs: AnyArray) -> AnyArray:
    """Forward and backward substitution with k right-hand sides (n b, k)."""
    n, k = len(analysis.order), rhs.shape[1]
    x = np.empty((k, n * size))
    for position in range(n):
        for at in range(size):
            for side in range(k):
                x[side, position * size + at] = rhs[analysis.order[position] * size + at, side]
    _substitute_forward(analysis, size, factor, x)
    _substitute_backward(analysis, size, factor, x)
    out = np.empty_like(rhs)
    for position in range(n):
        for at in range(size):
            for side in range(k):
                out[analysis.order[position] * size + at, side] = x[side, position * size + at]
    return out


@kernel
def _substitute_forward(analysis: Analysis, size: int, factor: AnyArray, x: AnyArray) -> None:
    sides = len(x)
    scratch = np.empty((sides, size * _tallest_front(analysis)))
    for s in range(len(analysis.parent)):
        first, start = size * analysis.column_start[s], analysis.row_start[s]
        width = size * analysis.column_start[s + 1] - first
        height = size * (analysis.row_start[s + 1] - start)
        panel = _panel(analysis, s, size, factor)
        for side in range(sides):
            for r in range(width):
                scratch[side, r] = x[side, first + r]
            for r in range(height):
                scratch[side, width + r] = 0
        for k in range(width):
            row = panel[k]
            later = row[k + 1 :]
            for side in range(sides):
                f = scratch[side, k] / row[k]
                scratch[side, k] = f
                local = scratch[side, k + 1 :]
                for at in range(len(later)):
                    local[at] -= f * later[at]
        for side in range(sides):
            for r in range(width):
                x[side, first + r] = scratch[side, r]
            for r in range(height):
                x[side, analysis.rows[start + r // size] * size + r % size] += scratch[side, width + r]


@kernel
def _substitute_backward(analysis: Analysis, size: int, factor: AnyArray, x: AnyArray) -> None:
    sides = len(x)
    scratch = np.empty((sides, size * _tallest_front(analysis)))
    for s in range(len(analysis.parent) - 1, -1, -1):
        first, start = size * analysis.column_start[s], analysis.row_start[s]
        width = size * analysis.column_start[s + 1] - first
        height = size * (analysis.row_start[s + 1] - start)
        panel = _panel(analysis, s, size, factor)
        for side in range(sides):
            for r in range(width):
                scratch[side, r] = x[side, first + r]
            for r in range(height):
                scratch[side, width + r] = x[side, analysis.rows[start + r // size] * size + r % size]
        for k in range(width - 1, -1, -1):
            row = panel[k]
            later = row[k + 1 :]
            for side in range(sides):
                value, local = scratch[side, k], scratch[side, k + 1 :]
                for at in range(len(later)):
                    value -= later[at] * local[at]
                scratch[side, k] = value / row[k]
        for side in range(sides):
            for r in range(width):
                x[side, first + r] = scratch[side, r]


@kernel
def _panel(analysis: Analysis, s: int, size: int, factor: AnyArray) -> AnyArray:
    """The rows of Lᵀ that supernode s holds: its own columns, then those of its rows."""
    width = size * (analysis.column_start[s + 1] - analysis.column_start[s])
    total = width + size * (analysis.row_start[s + 1] - analysis.row_start[s])
    offset = size * size * analysis.panel_start[s]
    return factor[offset : offset + width * total].reshape(width, total)


@kernel
def _tallest_front(analysis: Analysis) -> int:
    tallest = 0
    for s in range(len(analysis.parent)):
        width = analysis.column_start[s + 1] - analysis.column_start[s]
        tallest = max(tallest, width + analysis.row_start[s + 1] - analysis.row_start[s])
    return tallest


@kernel
def _inverse_diagonal(analysis: Analysis, size: int, factor: AnyArray, out: AnyArray) -> None:
    """Takahashi's equations: blocks (n, b, b) on the diagonal of A⁻¹, from the last supernode to the first.

    With the rows [U, V] of Lᵀ that a supernode holds and the inverse Z of what is eliminated later, its part
    of the inverse is [W, -Y Z] with Y = U⁻¹ V and W = U⁻¹ U⁻ᵀ + Y Z Yᵀ. Z lies in the parent's front, and
    only the fronts on the way to the root are kept.
    """
    num = len(analysis.parent)
    end = np.zeros(num + 1, np.int64)  # of each front on the stack; the last entry serves parents -1
    for s in range(num - 1, -1, -1):
        total = analysis.column_start[s + 1] - analysis.column_start[s]
        total += analysis.row_start[s + 1] - analysis.row_start[s]
        end[s] = end[analysis.parent[s]] + (size * total) ** 2
    stack = np.empty(end.max())
    index = np.empty(size * _tallest_front(analysis), np.int64)
    for s in range(num - 1, -1, -1):
        panel = _panel(analysis, s, size, factor)
        width, total = panel.shape
        height = total - width
        first = end[analysis.parent[s]]
        front = stack[first : end[s]].reshape(total, total)
        if height > 0:
            up = analysis.parent[s]
            side = int(np.sqrt(end[up] - end[analysis.parent[up]]) + 0.5)
            theirs = stack[end[analysis.parent[up]] : end[up]].reshape(side, side)
            _expand(analysis.relative, analysis.row_start[s], height, size, index)
            for row in range(height):
                for column in range(height):
                    front[width + row, width + column] = theirs[index[row], index[column]]
        _invert_front(panel, front)
        for column in range(analysis.column_start[s], analysis.column_start[s + 1]):
            at = size * (column - analysis.column_start[s])
            out[analysis.order[column]] = front[at : at + size, at : at + size]


@kernel
def _invert_front(panel: AnyArray, front: AnyArray) -> None:
    """Fills a front's own rows and columns of the inverse; the rest of it is known."""
    width, total = panel.shape
    solved = np.zeros((width, total))  # U⁻¹ [1, V]
    for k in range(width - 1, -1, -1):
        row = solved[k]
        row[k] = 1.0
        for column in range(width, total):
            row[column] = panel[k, column]
        for later in range(k + 1, width):
            f, other = panel[k, later], solved[later]
            for column in range(total):
                row[column] -= f * other[column]
        for column in range(total):
            row[column] /= panel[k, k]
    inverse, y = np.ascontiguousarray(solved[:, :width]), np.ascontiguousarray(solved[:, width:])
    own = inverse @ inverse.T
    if total > width:
        across = y @ np.ascontiguousarray(front[width:, width:])
        own += across @ y.T
        front[:width, width:] = -across
        front[width:, :width] = -across.T
    front[:width, :width] = own
