"""Positions that come with images: geotags, recordings, telemetry."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import IFDRational
from rosbags.rosbag2 import Writer
from rosbags.typesys import Stores, get_typestore

from anchor3r.errors import Anchor3RError
from anchor3r.sources import open_source
from anchor3r.sources.positions import _packet_fixes, read_fixes

PLACES = np.array([[48.1, 11.5, 520.0], [48.2, -11.6, 521.5], [-48.3, 11.7, -3.0]])


def write_photo(path: Path, place: np.ndarray | None, taken: str | None) -> None:
    exif = Image.Exif()
    if taken is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
    if place is not None:
        gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
        for value, tag, sides in zip(place, (1, 3), ("NS", "EW"), strict=False):
            minutes = abs(value) % 1 * 60
            gps[tag] = sides[int(value < 0)]
            gps[tag + 1] = (float(int(abs(value))), float(int(minutes)), round(minutes % 1 * 60, 4))
        gps[5], gps[6] = bytes([int(place[2] < 0)]), abs(float(place[2]))
    Image.new("RGB", (24, 16)).save(path, exif=exif)


def test_geotags_are_at_the_times_of_the_frames(tmp_path: Path) -> None:
    for k, place in enumerate([*PLACES, None]):
        write_photo(tmp_path / f"{k}.jpg", place, f"2024:05:06 07:08:{9 + 4 * k:02d}")
    fixes = read_fixes(str(tmp_path))
    np.testing.assert_allclose(fixes.position, PLACES, atol=1e-6)
    assert fixes.entries == ["0.jpg", "1.jpg", "2.jpg"]
    with open_source(str(tmp_path)) as source:
        assert [frame.timestamp_s for frame in source.frames()][:3] == fixes.times_s.tolist()


def test_a_camera_without_a_fix_has_no_place(tmp_path: Path) -> None:
    for k, place in enumerate([PLACES[0], PLACES[1], PLACES[2]]):
        write_photo(tmp_path / f"{k}.jpg", place, None)
    path = tmp_path / "1.jpg"
    exif = Image.open(path).getexif()
    exif.get_ifd(ExifTags.IFD.GPSInfo)[2] = (IFDRational(0, 0),) * 3
    Image.new("RGB", (24, 16)).save(path, exif=exif)
    assert read_fixes(str(tmp_path)).entries == ["0.jpg", "2.jpg"]


def test_frames_without_times_have_those_of_a_video(tmp_path: Path) -> None:
    for k, place in enumerate(PLACES):
        write_photo(tmp_path / f"{k}.jpg", place, None)
    assert read_fixes(str(tmp_path)).times_s == pytest.approx([0, 1 / 30, 2 / 30])


def test_photographs_without_a_place_are_refused(tmp_path: Path) -> None:
    write_photo(tmp_path / "0.jpg", None, "2024:05:06 07:08:09")
    with pytest.raises(Anchor3RError, match="says where it was taken"):
        read_fixes(str(tmp_path))


def write_bag(folder: Path, topics: tuple[str, ...] = ("/fix",)) -> Path:
    """Fixes once a second; the second is none, the last knows its errors."""
    types = get_typestore(Stores.ROS2_HUMBLE)
    kind = types.types["sensor_msgs/msg/NavSatFix"]
    with Writer(folder, version=9) as writer:
        for topic in topics:
            connection = writer.add_connection(topic, kind.__msgtype__, typestore=types)
            for k, place in enumerate([PLACES[0], [0.0, 0.0, 0.0], PLACES[1]]):
                stamp = types.types["builtin_interfaces/msg/Time"](sec=1000 + k, nanosec=500_000_000)
                message = kind(
                    header=types.types["std_msgs/msg/Header"](stamp=stamp, frame_id="gps"),
                    status=types.types["sensor_msgs/msg/NavSatStatus"](status=-1 if k == 1 else 0, service=1),
                    latitude=float(place[0]), longitude=float(place[1]), altitude=float(place[2]),
                    position_covariance=np.diag([4.0, 4.0, 9.0]).ravel(),
                    position_covariance_type=2 if k == 2 else 0,
                )  # fmt: skip
                data = types.serialize_cdr(message, kind.__msgtype__)
                writer.write(connection, (1001 + k) * 10**9, data)
    return folder


def test_fixes_of_a_recording(tmp_path: Path) -> None:
    fixes = read_fixes(str(write_bag(tmp_path / "bag")))
    np.testing.assert_array_equal(fixes.times_s, [1000.5, 1002.5])
    np.testing.assert_array_equal(fixes.position, PLACES[:2])
    assert np.isnan(fixes.sigma_m[0]).all()
    np.testing.assert_allclose(fixes.sigma_m[1], [2, 2, 3])
    assert fixes.entries == ["message 1", "message 3"]


def test_one_of_several_topics_has_to_be_chosen(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", ("/a/fix", "/b/fix"))
    with pytest.raises(Anchor3RError, match=r"fixes under /a/fix, /b/fix; choose one"):
        read_fixes(str(bag))
    assert len(read_fixes(f"{bag}?topic=/b/fix")) == 2
    with pytest.raises(Anchor3RError, match=r"no fixes under /c; it has /a/fix, /b/fix"):
        read_fixes(f"{bag}?topic=/c")


def entry(key: bytes, kind: bytes, size: int, data: bytes) -> bytes:
    padding = b"\0" * (-len(data) % 4)
    return key + kind + struct.pack(">BH", size, len(data) // max(size, 1)) + data + padding


TWO = np.array([[48.1, 11.5, 520.0], [48.2, 11.6, 521.0]])


def telemetry(fix: int = 3, positions: np.ndarray = TWO) -> bytes:
    """A packet of positions as GoPro writes it."""
    values = np.hstack([positions, np.full((len(positions), 2), 3.0)])
    scale = np.array([1e7, 1e7, 1e3, 1e3, 1e2])
    stream = (
        entry(b"STNM", b"c", 1, b"GPS")
        + entry(b"GPSF", b"L", 4, struct.pack(">L", fix))
        + entry(b"GPSP", b"S", 2, struct.pack(">H", 150))
        + entry(b"SCAL", b"l", 4, scale.astype(">i4").tobytes())
        + entry(b"GPS5", b"l", 20, np.round(values * scale).astype(">i4").tobytes())
    )
    other = entry(b"STRM", b"\0", 1, entry(b"ACCL", b"s", 6, bytes(12)))
    return entry(b"DEVC", b"\0", 1, other + entry(b"STRM", b"\0", 1, stream))


def test_telemetry_spreads_its_samples_over_the_packet() -> None:
    fixes = list(_packet_fixes(telemetry(), 10.0, 1.0, 5))
    assert [fix.time_s for fix in fixes] == [10.0, 10.5]
    np.testing.assert_allclose([fix.position for fix in fixes], [[48.1, 11.5, 520], [48.2, 11.6, 521]])
    assert fixes[0].sigma_m == pytest.approx((6, 6, 9))
    assert fixes[0].entry == "sample 6"
    assert not list(_packet_fixes(telemetry(fix=0), 10.0, 1.0, 0))


def atom(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I", 8 + len(body)) + name + body


def write_gopro(path: Path, packets: list[bytes], packet_s: float = 1.0) -> None:
    """A movie whose only track is telemetry, box by box, as GPMF's documentation lays it out."""
    rate, matrix = 1000, struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    each = round(packet_s * rate)
    length = each * len(packets)
    file_type = atom(b"ftyp", b"mp41", struct.pack(">I", 0), b"mp41")
    offsets = np.cumsum([len(file_type) + 8, *map(len, packets)])[:-1]
    described = atom(b"gpmd", bytes(6), struct.pack(">H", 1), struct.pack(">I", 0))
    table = atom(
        b"stbl",
        atom(b"stsd", struct.pack(">II", 0, 1), described),
        atom(b"stts", struct.pack(">IIII", 0, 1, len(packets), each)),
        atom(b"stsc", struct.pack(">IIIII", 0, 1, 1, 1, 1)),
        atom(b"stsz", struct.pack(f">III{len(packets)}I", 0, 0, len(packets), *map(len, packets))),
        atom(b"stco", struct.pack(f">II{len(packets)}I", 0, len(packets), *offsets)),
    )
    data = atom(b"dinf", atom(b"dref", struct.pack(">II", 0, 1), atom(b"url ", struct.pack(">I", 1))))
    generic = atom(b"gmhd", atom(b"gmin", bytes(16)), atom(b"gpmd", bytes(4)))
    media = atom(
        b"mdia",
        atom(b"mdhd", struct.pack(">5IHH", 0, 0, 0, rate, length, 0, 0)),
        atom(b"hdlr", bytes(4), b"mhlrmeta", bytes(12), b"\x0bGoPro MET  "),
        atom(b"minf", generic, data, table),
    )
    head = struct.pack(">6I", 7, 0, 0, 1, 0, length) + bytes(16) + matrix + bytes(8)
    movie = struct.pack(">5IIH", 0, 0, 0, rate, length, 0x10000, 0x100) + bytes(10) + matrix + bytes(24)
    moov = atom(
        b"moov", atom(b"mvhd", movie, struct.pack(">I", 2)), atom(b"trak", atom(b"tkhd", head), media)
    )
    path.write_bytes(file_type + atom(b"mdat", *packets) + moov)


def gps9(positions: np.ndarray, fixes: list[int], seconds: float, kinds: bytes = b"lllllllSS") -> bytes:
    """A packet of the newer kind: a structure a sample, with its own time, dilution and fix."""
    samples = b""
    for k, ((latitude, longitude, altitude), fix) in enumerate(zip(positions, fixes, strict=True)):
        moment = round(1000 * (seconds + 0.1 * k))
        numbers = (
            round(latitude * 1e7),
            round(longitude * 1e7),
            round(altitude * 1e3),
            3100,
            315,
            9000,
            moment,
        )
        samples += struct.pack(">7i2H", *numbers, 125 + k, fix)
    scales = struct.pack(">9i", 10**7, 10**7, 1000, 1000, 100, 1, 1000, 100, 1)
    stream = (
        entry(b"STNM", b"c", 1, b"GPS (Lat., Long., Alt., 2D, 3D, days, secs, DOP, fix)")
        + entry(b"TYPE", b"c", 1, kinds)
        + entry(b"SCAL", b"l", 4, scales)
        + entry(b"GPS9", b"?", 32, samples)
    )
    return entry(b"DEVC", b"\0", 1, entry(b"STRM", b"\0", 1, stream))


def test_a_newer_gopro_tells_time_dilution_and_fix_of_each_sample(tmp_path: Path) -> None:
    positions = np.array([[48.1, 11.5, 520.0]]) + np.arange(20)[:, None] * [1e-5, -2e-5, 0.25]
    packets = [gps9(positions[:10], [0, 0, *[3] * 8], 100.0), gps9(positions[10:], [2] * 10, 101.0)]
    write_gopro(tmp_path / "hero.mp4", packets)
    fixes = read_fixes(str(tmp_path / "hero.mp4"))
    assert len(fixes) == 18
    np.testing.assert_allclose(fixes.times_s, np.arange(2, 20) / 10, atol=1e-9)
    np.testing.assert_allclose(fixes.position, positions[2:], atol=1e-7)
    np.testing.assert_allclose(fixes.sigma_m[0], np.array([4, 4, 6]) * 1.27)
    assert fixes.entries == [f"sample {k + 1}" for k in range(18)]


def test_a_newer_gopro_without_a_fix_or_of_another_type_is_refused(tmp_path: Path) -> None:
    positions = np.tile([48.1, 11.5, 520.0], (3, 1))
    write_gopro(tmp_path / "none.mp4", [gps9(positions, [0, 0, 0], 0.0)])
    with pytest.raises(Anchor3RError, match="GPS5 or GPS9, or no fix"):
        read_fixes(str(tmp_path / "none.mp4"))
    for kinds in (b"lllllllS", b"[9]l", b"fffffffff"):
        write_gopro(tmp_path / "odd.mp4", [gps9(positions, [3, 3, 3], 0.0, kinds)])
        with pytest.raises(Anchor3RError, match="name a video of a GoPro"):
            read_fixes(str(tmp_path / "odd.mp4"))


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_telemetry_that_is_cut_off_ends_there(cut: int) -> None:
    assert len(list(_packet_fixes(telemetry()[:cut], 0.0, 1.0, 0))) == 0


def test_a_real_video_of_a_gopro(shared: Path) -> None:
    fixes = read_fixes(str(shared / "real/gopro/max-heromode.mp4"))
    assert len(fixes) == 191
    assert 10 < fixes.times_s[-1] < 11
    np.testing.assert_allclose(fixes.position[0], [33.12677, -117.3273436, -22.959])


def test_a_video_without_telemetry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(Anchor3RError, match="is damaged"):
        read_fixes(str(tmp_path / "broken.mp4"))
    with pytest.raises(Anchor3RError, match="No such file"):
        read_fixes(str(tmp_path / "none.mp4"))


def test_real_photographs_of_a_drone(shared: Path) -> None:
    fixes = read_fixes(str(shared / "real/drone_photos"))
    assert len(fixes) == 40
    np.testing.assert_allclose(fixes.position[0, :2], [41.0365791, -83.3073587], atol=1e-6)
