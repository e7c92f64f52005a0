"""Local metric frames on the Earth: against pyproj, back and forth, and at the poles."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.geodesy import Datum


def test_local_positions_equal_pyprojs() -> None:
    pyproj = pytest.importorskip("pyproj")
    datum = Datum(latitude_deg=48.982, longitude_deg=8.391, altitude_m=116.0)
    there = np.array([48.982, 8.391, 116.0]) + np.random.default_rng(0).normal(size=(50, 3)) * [
        0.02,
        0.03,
        80,
    ]
    to_topocentric = pyproj.Transformer.from_pipeline(
        "+proj=pipeline +step +proj=axisswap +order=2,1 +step +proj=unitconvert +xy_in=deg +xy_out=rad "
        f"+step +proj=cart +ellps=WGS84 +step +proj=topocentric +ellps=WGS84 "
        f"+lon_0={datum.longitude_deg} +lat_0={datum.latitude_deg} +h_0={datum.altitude_m}"
    )
    np.testing.assert_allclose(
        datum.to_local(there), np.stack(to_topocentric.transform(*there.T), -1), atol=1e-6
    )


@pytest.mark.parametrize("latitude", [-90.0, -33.9, 0.0, 51.2, 89.9999, 90.0])
def test_there_and_back(latitude: float) -> None:
    datum = Datum(latitude_deg=latitude, longitude_deg=179.99, altitude_m=400.0)
    local = np.random.default_rng(1).normal(size=(100, 3)) * [3000, 3000, 200]
    np.testing.assert_allclose(datum.to_local(datum.to_geodetic(local)), local, atol=1e-6)


def test_axes_are_east_north_up() -> None:
    datum = Datum(latitude_deg=10.0, longitude_deg=20.0, altitude_m=0.0)
    assert datum.to_local([10.0, 20.001, 0.0])[0] == pytest.approx(109.6, abs=0.1)
    assert datum.to_local([10.001, 20.0, 0.0])[1] == pytest.approx(110.6, abs=0.1)
    assert datum.to_local([10.0, 20.0, 5.0]) == pytest.approx([0, 0, 5], abs=1e-8)


def test_latitudes_beyond_the_poles_are_refused() -> None:
    with pytest.raises(ValueError, match="within 90"):
        Datum(latitude_deg=112.0, longitude_deg=20.0, altitude_m=0.0)
