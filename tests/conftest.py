"""Shared fixtures: where the optional real test data lies, and a small map with dense points."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from anchor3r.pipeline.mapping import map_source
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.sources import open_source
from anchor3r.store import Map, load_map

NUM_FRAMES = 11

# Jobs in the background of a shell ignore Ctrl-C and hand that on; programs under test must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real sequences, public graphs and reference outputs, beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}")
    return folder


@pytest.fixture(scope="session")
def street_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven exact frames of 64×48 pixels, made without any noise."""
    folder = tmp_path_factory.mktemp("street") / "map"
    with open_source(f"world:5?width=64&height=48&motion=driving&frames={NUM_FRAMES}") as world:
        map_source(world, folder, predictor=GroundTruthPredictor())
    return folder


@pytest.fixture
def street(street_folder: Path) -> Iterator[Map]:
    with load_map(street_folder) as scene_map:
        yield scene_map
