"""Figures hold what they claim: looked at through the artists that were drawn, and as files."""

from pathlib import Path

import numpy as np
import pytest
from miniatures import drive
from PIL import Image

from anchor3r.evaluation import figures
from anchor3r.evaluation.metrics import trajectory_errors
from anchor3r.geometry import SE3


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[figures.Figure]:
    """Every figure that was saved."""
    kept: list[figures.Figure] = []
    save = figures._save

    def keep(figure: figures.Figure, path: Path) -> None:
        kept.append(figure)
        save(figure, path)

    monkeypatch.setattr(figures, "_save", keep)
    return kept


def test_trajectory_is_coloured_by_its_error(drawn: list[figures.Figure], tmp_path: Path) -> None:
    true = drive(30)
    bent = SE3(true.rotation, true.translation + np.linspace(0, 3, 30)[:, None] ** 2 * np.array([0, 0, 1]))
    errors = trajectory_errors(bent, true)
    figures.trajectory_figure(
        {"online": errors, "offline": trajectory_errors(true, true)}, tmp_path / "a.png", "00"
    )
    axes = drawn[0].axes[:2]
    line = axes[0].collections[0]
    np.testing.assert_allclose(line.get_array(), errors.absolute_m[1:])
    # The path hardly leaves the plane of x and z.
    assert (axes[0].get_xlabel(), axes[0].get_ylabel()) == ("x (m)", "z (m)")
    np.testing.assert_allclose(axes[0].lines[0].get_xydata(), true.translation[:, [0, 2]])
    assert axes[0].collections[0].get_clim() == axes[1].collections[0].get_clim()
    assert "offline: ATE" in axes[1].get_title()
    assert Image.open(tmp_path / "a.png").width > 1000


def test_error_over_distance(drawn: list[figures.Figure], tmp_path: Path) -> None:
    true = drive(30)
    errors = trajectory_errors(SE3(true.rotation, true.translation**2), true)
    figures.error_over_distance_figure({"online": errors}, tmp_path / "deep/b.png", "00")
    distance, error = drawn[0].axes[0].lines[0].get_xydata().T
    assert distance[0] == 0
    assert np.all(np.diff(distance) > 0)
    np.testing.assert_allclose(error, errors.absolute_m)
    assert (tmp_path / "deep/b.png").is_file()


def test_runtime(drawn: list[figures.Figure], tmp_path: Path) -> None:
    seconds = np.full(200, 0.02)
    figures.runtime_figure(seconds, np.full(200, 3 * 2.0**20), tmp_path / "c.png", "00")
    per_frame, total, memory = drawn[0].axes
    np.testing.assert_allclose(per_frame.lines[1].get_ydata(), 20)
    assert total.lines[0].get_ydata()[-1] == pytest.approx(4.0)
    np.testing.assert_allclose(memory.lines[0].get_ydata(), 3)
