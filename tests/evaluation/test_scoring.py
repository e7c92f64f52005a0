"""Where a point map's cells meet the pixels of a true depth image."""

import numpy as np
import pytest

from anchor3r.evaluation.geometry import depth_at_cells


def plane(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Depth of a plane whose inverse depth is linear, at pixel coordinates."""
    return 1 / (0.01 + 0.02 * rows[:, None] + 0.003 * columns)


@pytest.mark.parametrize("cells", [(6, 8), (12, 16), (24, 32), (8, 20), (1, 1)])
def test_a_plane_is_met_exactly_in_the_middle_of_cells(cells: tuple[int, int]) -> None:
    depth = plane(np.arange(24), np.arange(32))
    # The first two rows differ by more than an edge may.
    depth[:2] = depth[2]
    middle = [(np.arange(n) + 0.5) * size / n - 0.5 for n, size in zip(cells, depth.shape, strict=True)]
    found, expected = depth_at_cells(depth, cells), plane(*middle)
    below = middle[0] >= 2
    np.testing.assert_allclose(found[below], expected[below], rtol=1e-12)


def test_nothing_is_interpolated_across_an_edge_or_into_the_unknown() -> None:
    depth = np.where(np.arange(8) < 4, 2.0, 10.0) * np.ones((8, 1))
    assert set(np.unique(depth_at_cells(depth, (2, 3)))) <= {2.0, 10.0}
    depth[:, 5] = 0
    assert set(np.unique(depth_at_cells(depth, (4, 4)))) <= {0.0, 2.0, 10.0}
