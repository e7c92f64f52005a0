"""Small positive definite systems inside kernels: a few unknowns, no BLAS call, quick to compile."""

from __future__ import annotations

import math

from anchor3r.geometry import Array
from anchor3r.kernels import kernel


@kernel
def factorise(matrix: Array) -> bool:
    """Replaces the lower triangle of (n, n) by its Cholesky factor; False if it is not positive definite."""
    for j in range(len(matrix)):
        pivot = matrix[j, j]
        for k in range(j):
            pivot -= matrix[j, k] * matrix[j, k]
        if not pivot > 0:
            return False
        root = math.sqrt(pivot)
        matrix[j, j] = root
        for i in range(j + 1, len(matrix)):
            rest = matrix[i, j]
            for k in range(j):
                rest -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = rest / root
    return True


@kernel
def substitute(factor: Array, right: Array) -> None:
    """Replaces the right-hand side (n,) by the solution, given what `factorise` left."""
    size = len(right)
    for i in range(size):
        for k in range(i):
            right[i] -= factor[i, k] * right[k]
        right[i] /= factor[i, i]
    for i in range(size - 1, -1, -1):
        for k in range(i + 1, size):
            right[i] -= factor[k, i] * right[k]
        right[i] /= factor[i, i]
