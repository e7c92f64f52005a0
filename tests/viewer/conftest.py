"""A map of a street, and where the pictures that the browser took are kept."""

from pathlib import Path

import pytest
from street import write_street


@pytest.fixture(scope="session")
def street(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("street") / "map"
    write_street(folder, 60, refined=True)
    return folder


@pytest.fixture(scope="session")
def pictures() -> Path:
    return Path(__file__).resolve().parents[2] / "out" / "tests" / "viewer"
