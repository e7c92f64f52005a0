"""A small map with dense points that overlap from frame to frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from anchor3r.commands.map import make_map
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.sources import open_source
from anchor3r.store import Map, load_map

NUM_FRAMES = 11


@pytest.fixture(scope="session")
def street_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven exact frames of 64×48 pixels, made without any noise."""
    folder = tmp_path_factory.mktemp("street") / "map"
    with open_source(f"world:5?width=64&height=48&motion=driving&frames={NUM_FRAMES}") as world:
        make_map(world, GroundTruthPredictor(), folder)
    return folder


@pytest.fixture
def street(street_folder: Path) -> Iterator[Map]:
    with load_map(street_folder) as made:
        yield made
