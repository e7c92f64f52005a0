"""Passwords in addresses: they reach the server, and nothing that is printed or kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from clips import encode
from servers import serving, web_server

from anchor3r.cli.main import main
from anchor3r.errors import Anchor3RError, without_secrets
from anchor3r.sources import open_source
from anchor3r.store import load_map


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rtsp://admin:s3cret@10.0.0.2:554/live", "rtsp://admin:***@10.0.0.2:554/live"),
        ("rtsp://admin:p@ss:w0rd@camera/live@2", "rtsp://admin:***@camera/live@2"),
        ("http://:s3cret@host", "http://:***@host"),
        ("[Errno 5] I/O error: 'https://a:b@host/x'", "[Errno 5] I/O error: 'https://a:***@host/x'"),
        ("rtsp://admin:two words@camera/live", "rtsp://admin:***@camera/live"),
        ("http:/user:s3cret@host/x", "http:/user:***@host/x"),
        ("http://host/x?camera=2&token=abc&b=1", "http://host/x?camera=2&token=***&b=1"),
        ("cannot open 'http://h/x?API_KEY=abc' (it)", "cannot open 'http://h/x?API_KEY=***' (it)"),
        ("rtsp://host:554/user@home", "rtsp://host:554/user@home"),
        ("https://name@host/x", "https://name@host/x"),
        ("7scenes:a:b@c", "7scenes:a:b@c"),
    ],
)
def test_only_the_password_goes(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


@pytest.mark.parametrize("scheme", ["http", "rtsp", "ftp", "no+scheme"])
def test_errors_do_not_tell_it(scheme: str) -> None:
    with pytest.raises(Anchor3RError, match=r"user:\*\*\*@127.0.0.1:9/x") as found:
        open_source(f"{scheme}://user:s3cret@127.0.0.1:9/x")
    assert "s3cret" not in str(found.value)


@pytest.mark.parametrize(
    "command",
    [
        ("convert", "vggt", "ADDRESS", "--out", "out.safetensors"),
        ("evaluate", "trajectory", "ADDRESS", "ADDRESS"),
        ("map", "world:1", "--predictor", "ADDRESS", "--out", "out"),
        ("localise", "ADDRESS", "ADDRESS", "--out", "out.tum"),
        ("map", "http:user:s3cret@127.0.0.1:9/x", "--out", "out"),
    ],
)
def test_no_command_tells_it_wherever_it_is_given(
    command: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [word.replace("ADDRESS", "rtsp://user:p@ss3cret@127.0.0.1:9/x?token=s3cret") for word in command]
    assert main([*given, "--json"]) == 1
    captured = capsys.readouterr()
    assert "s3cret" not in captured.out + captured.err


def test_a_batch_does_not_keep_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = "http://user:s3cret@127.0.0.1:9/x?token=s3cret"
    (tmp_path / "rows.csv").write_text(f"source\n{address}\nworld:1?frames=2&width=32&height=24\n")
    main(
        [
            "batch",
            str(tmp_path / "rows.csv"),
            "--out",
            str(tmp_path / "out"),
            "--map.predictor",
            "ground-truth",
        ]
    )
    captured = capsys.readouterr()
    assert "s3cret" not in captured.out + captured.err
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    assert not any(b"s3cret" in path.read_bytes() or "s3cret" in str(path) for path in files)


def test_maps_and_their_words_do_not_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip, folder = encode(tmp_path / "clip.mp4", 5).read_bytes(), tmp_path / "map"
    with serving(web_server(clip, "video/mp4")) as port:
        address = f"http://user:s3cret@127.0.0.1:{port}/clip"
        options = ("--predictor", "features", "--out", str(folder))
        assert main(["map", address, *options, "--stop", "3"]) == 1  # too few frames for a pose
        assert main(["map", address, *options, "--resume"]) == 1
        assert main(["map", address, *options]) == 1
    captured = capsys.readouterr()
    assert f"user:***@127.0.0.1:{port}/clip" in captured.err
    assert "s3cret" not in captured.out + captured.err
    with load_map(folder) as scene_map:
        assert scene_map.num_frames == 5
        assert scene_map.meta["identity"]["source"] == f"http://user:***@127.0.0.1:{port}/clip"
    assert not any(b"s3cret" in file.read_bytes() for file in folder.iterdir())
