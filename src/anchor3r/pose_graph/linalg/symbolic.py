"""Which entries the Cholesky factor of a graph's matrix has: all of the factorisation but the numbers.

A fill-reducing order, the elimination tree, supernodes (neighbouring columns of the same structure, which
`sparse` treats as one dense front), and where every entry of the matrix goes. Made once for a graph, used
for every new set of values.

Symbols: n nodes, m edges, p pairs (distinct edges), s supernodes.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, diags_array
from scipy.sparse.linalg import splu

from anchor3r.kernels import kernel

Index = NDArray[np.int64]

_HAS_METIS = find_spec("pymetis") is not None  # there is not a wheel for every platform
_TINY_GRAPH = 32  # below it any order will do
# Part of a supernode that may be stored zeros, by its width: narrow fronts cost more than their arithmetic.
_ALLOWED_ZEROS = np.repeat([1.0, 0.8, 0.1, 0.05], [5, 12, 32, 1])


class Analysis(NamedTuple):
    """The structure of the factor. Positions are places in the elimination order."""

    order: Index
    """(n,) node at each position"""
    slot: Index
    """(m,) the pair that each edge belongs to; pair (a, b) holds the block in row a, column b, with a < b"""
    num_pairs: int
    pair_front: Index
    """(p, 3) row and column of each pair in its supernode's front, and whether its block is transposed"""
    pair_start: Index
    """(s + 1,) the pairs of supernode s are pair_list[pair_start[s] : pair_start[s + 1]]"""
    pair_list: Index
    """(p,)"""
    column_start: Index
    """(s + 1,) supernode s eliminates positions column_start[s] … column_start[s + 1] - 1"""
    row_start: Index
    """(s + 1,) and touches the later positions rows[row_start[s] : row_start[s + 1]]"""
    rows: Index
    """(Σ rows,) ascending in each supernode"""
    relative: Index
    """(Σ rows,) place of each of these rows in the parent's front"""
    parent: Index
    """(s,) supernode that takes over what is left of the front, -1 at a root"""
    panel_start: Index
    """(s + 1,) offsets of the supernodes' panels in the factor, for b = 1"""
    stack_size: int
    """Entries of the stack of pending updates at its fullest, for b = 1"""

    def factor_cost(self, block_size: int) -> tuple[float, float]:
        """Floating-point operations of a factorisation, and entries of the factor and its stack."""
        width = block_size * np.diff(self.column_start).astype(np.float64)
        height = block_size * np.diff(self.row_start).astype(np.float64)
        operations = float(np.sum(width**3 / 3 + width**2 * height + width * height**2))
        return operations, float(self.panel_start[-1] + self.stack_size) * block_size**2


def fill_reducing_order(num_nodes: int, i: Index, j: Index) -> Index:
    """The nodes in an order of elimination that keeps the factor sparse.

    METIS' nested dissection, or the minimum degree that SciPy's LU finds where METIS is not installed.
    """
    if num_nodes <= _TINY_GRAPH or len(i) == 0:
        return np.arange(num_nodes)
    a, b, _ = _distinct_pairs(num_nodes, i, j)
    start, neighbour = _adjacency(num_nodes, a, b)
    if _HAS_METIS:
        import pymetis

        order, _ = pymetis.nested_dissection(pymetis.CSRAdjacency(start, neighbour))
        return np.asarray(order, np.int64)
    adjacency = csc_array((np.ones(len(neighbour)), neighbour, start), shape=(num_nodes, num_nodes))
    laplacian = csc_array(diags_array(np.diff(start) + 1.0) - adjacency)
    factor = splu(laplacian, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0, options={"SymmetricMode": True})
    return np.argsort(factor.perm_c)


def analyse(num_nodes: int, i: Index, j: Index, order: Index | None = None) -> Analysis:
    """Symbolic factorisation for edges (i[e], j[e]), in a given order or a fill-reducing one."""
    i, j = np.asarray(i, np.int64), np.asarray(j, np.int64)
    if len(i) and (min(i.min(), j.min()) < 0 or max(i.max(), j.max()) >= num_nodes or np.any(i == j)):
        raise ValueError("edges must join two different nodes in 0 … num_nodes - 1")
    if order is None:
        order = fill_reducing_order(num_nodes, i, j)
    a, b, slot = _distinct_pairs(num_nodes, i, j)
    position = np.empty(num_nodes, np.int64)
    position[order] = np.arange(num_nodes)
    parent, _ = _elimination_tree(*_rows_below(num_nodes, position[a], position[b]))
    order = order[_postorder(parent)]
    position[order] = np.arange(num_nodes)
    start, columns = _rows_below(num_nodes, position[a], position[b])
    parent, count = _elimination_tree(start, columns)
    column_start = _supernodes(parent, count)
    owner = np.repeat(np.arange(len(column_start) - 1), np.diff(column_start))
    row_start, rows, super_parent = _supernode_rows(start, columns, column_start, owner)
    relative = _relative_rows(column_start, row_start, rows, super_parent)
    pair_front, pair_start, pair_list = _pair_places(
        position[a], position[b], column_start, owner, row_start, rows
    )
    width, height = np.diff(column_start), np.diff(row_start)
    panel_start = np.concatenate([[0], np.cumsum(width * (width + height))])
    return Analysis(
        order, slot, len(a), pair_front, pair_start, pair_list, column_start, row_start, rows, relative,
        super_parent, panel_start, _stack_size(super_parent, height),
    )  # fmt: skip


def _distinct_pairs(num_nodes: int, i: Index, j: Index) -> tuple[Index, Index, Index]:
    """Nodes a < b of each pair, and the pair of each edge."""
    low, high = np.minimum(i, j), np.maximum(i, j)
    keys, slot = np.unique(low * num_nodes + high, return_inverse=True)
    return keys // num_nodes, keys % num_nodes, slot


@kernel
def _adjacency(num_nodes: int, a: Index, b: Index) -> tuple[Index, Index]:
    """Neighbours of every node, in compressed rows, each pair in both directions."""
    start = np.zeros(num_nodes + 2, np.int64)
    for e in range(len(a)):
        start[a[e] + 2] += 1
        start[b[e] + 2] += 1
    start = np.cumsum(start)
    neighbour = np.empty(2 * len(a), np.int64)
    for e in range(len(a)):
        neighbour[start[a[e] + 1]] = b[e]
        neighbour[start[b[e] + 1]] = a[e]
        start[a[e] + 1] += 1
        start[b[e] + 1] += 1
    return start[:-1], neighbour


@kernel
def _rows_below(num_nodes: int, a: Index, b: Index) -> tuple[Index, Index]:
    """The strictly lower triangle in compressed rows, for pairs of positions in any direction."""
    start = np.zeros(num_nodes + 2, np.int64)
    for e in range(len(a)):
        start[max(a[e], b[e]) + 2] += 1
    start = np.cumsum(start)
    columns = np.empty(len(a), np.int64)
    for e in range(len(a)):
        row = max(a[e], b[e])
        columns[start[row + 1]] = min(a[e], b[e])
        start[row + 1] += 1
    return start[:-1], columns


@kernel
def _elimination_tree(start: Index, columns: Index) -> tuple[Index, Index]:
    """Parent of each column (-1 at a root) and entries of the factor's columns, the diagonal included."""
    n = len(start) - 1
    parent, ancestor = np.full(n, -1), np.full(n, -1)
    count, seen_in_row = np.ones(n, np.int64), np.full(n, -1)
    for row in range(n):
        for e in range(start[row], start[row + 1]):
            column = columns[e]
            while ancestor[column] != -1 and ancestor[column] != row:
                ancestor[column], column = row, ancestor[column]
            if ancestor[column] == -1:
                ancestor[column] = row
                parent[column] = row
        seen_in_row[row] = row
        for e in range(start[row], start[row + 1]):
            column = columns[e]
            while seen_in_row[column] != row:
                count[column] += 1
                seen_in_row[column] = row
                column = parent[column]
    return parent, count


@kernel
def _postorder(parent: Index) -> Index:
    """An order of the columns in which every subtree is contiguous and ends with its root."""
    n = len(parent)
    first, sibling = np.full(n + 1, -1), np.full(n, -1)
    for node in range(n - 1, -1, -1):  # virtual root n; parent -1 indexes it
        up = parent[node] if parent[node] >= 0 else n
        sibling[node] = first[up]
        first[up] = node
    order, filled = np.empty(n, np.int64), 0
    stack, depth = np.empty(n + 1, np.int64), 0
    stack[0] = n
    while depth >= 0:
        node = stack[depth]
        child = first[node]
        if child >= 0:
            first[node] = sibling[child]
            depth += 1
            stack[depth] = child
        else:
            depth -= 1
            if node < n:
                order[filled] = node
                filled += 1
    return order


@kernel
def _supernodes(parent: Index, count: Index) -> Index:
    """First columns of the supernodes, and n.

    Neighbouring columns of identical structure form a supernode; it is joined with its parent where the
    zeros that this stores are cheaper than one more front.
    """
    n = len(parent)
    start, total = np.empty(n + 1, np.int64), 0
    entries = np.concatenate((np.zeros(1, np.int64), np.cumsum(count)))
    column = 0
    while column < n:
        end = column + 1
        while end < n and parent[end - 1] == end and count[end - 1] == count[end] + 1:
            end += 1
        joined = False
        if column > 0 and parent[column - 1] == column:
            first = start[total - 1]
            width = end - first
            stored = width * (width + 1) // 2 + width * (count[end - 1] - 1)
            zeros = stored - (entries[end] - entries[first])
            joined = zeros <= _ALLOWED_ZEROS[min(width, len(_ALLOWED_ZEROS) - 1)] * stored
        if not joined:
            start[total] = column
            total += 1
        column = end
    start[total] = n
    return start[: total + 1].copy()


@kernel
def _supernode_rows(
    start: Index, columns: Index, column_start: Index, owner: Index
) -> tuple[Index, Index, Index]:
    """Rows below each supernode's own columns (compressed, ascending) and the supernodes' parents.

    Row r is below exactly the supernodes on the paths from the columns of A in row r up to r itself. Walking
    the rows in ascending order fills every list in ascending order.
    """
    n, num = len(owner), len(column_start) - 1
    row_start = np.zeros(num + 1, np.int64)
    parent, seen = np.full(num, -1), np.full(num, -1)
    for row in range(n):  # a supernode's parent owns the first row below it
        for e in range(start[row], start[row + 1]):
            s = owner[columns[e]]
            while s != owner[row] and seen[s] != row:
                seen[s] = row
                row_start[s + 1] += 1
                if parent[s] == -1:
                    parent[s] = owner[row]
                s = parent[s]
    row_start = np.cumsum(row_start)
    rows, filled = np.empty(row_start[-1], np.int64), row_start.copy()
    seen[:] = -1
    for row in range(n):
        for e in range(start[row], start[row + 1]):
            s = owner[columns[e]]
            while s != owner[row] and seen[s] != row:
                seen[s] = row
                rows[filled[s]] = row
                filled[s] += 1
                s = parent[s]
    return row_start, rows, parent


@kernel
def _relative_rows(column_start: Index, row_start: Index, rows: Index, parent: Index) -> Index:
    """Place of each supernode's rows in its parent's front: columns first, then rows."""
    relative = np.empty(len(rows), np.int64)
    for s in range(len(parent)):
        up = parent[s]
        if up < 0:
            continue
        width, at = column_start[up + 1] - column_start[up], row_start[up]
        for r in range(row_start[s], row_start[s + 1]):
            if rows[r] < column_start[up + 1]:
                relative[r] = rows[r] - column_start[up]
                continue
            while rows[at] < rows[r]:
                at += 1
            relative[r] = width + at - row_start[up]
    return relative


@kernel
def _pair_places(
    a: Index, b: Index, column_start: Index, owner: Index, row_start: Index, rows: Index
) -> tuple[Index, Index, Index]:
    """Where each pair of positions enters the fronts, and the pairs of every supernode (compressed)."""
    place, num = np.empty((len(a), 3), np.int64), len(column_start) - 1
    start = np.zeros(num + 2, np.int64)
    for p in range(len(a)):
        early, late = min(a[p], b[p]), max(a[p], b[p])
        s = owner[early]
        place[p, 0] = early - column_start[s]
        if late < column_start[s + 1]:
            place[p, 1] = late - column_start[s]
        else:
            below = np.searchsorted(rows[row_start[s] : row_start[s + 1]], late)
            place[p, 1] = column_start[s + 1] - column_start[s] + below
        place[p, 2] = a[p] > b[p]
        start[s + 2] += 1
    start = np.cumsum(start)
    pairs = np.empty(len(a), np.int64)
    for p in range(len(a)):
        s = owner[min(a[p], b[p])]
        pairs[start[s + 1]] = p
        start[s + 1] += 1
    return place, start[:-1], pairs


@kernel
def _stack_size(parent: Index, height: Index) -> int:
    """Entries of pending updates at the fullest moment: a front's own lies above its children's."""
    num = len(parent)
    children = np.zeros(num, np.int64)
    now, peak = 0, 0
    for s in range(num):
        own = height[s] * height[s]
        peak = max(peak, now + own)
        now += own - children[s]
        if parent[s] >= 0:
            children[parent[s]] += own
    return peak
