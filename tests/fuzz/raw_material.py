"""Good inputs of every kind, small, from which the cases are made; and the libraries, loaded on the way."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image
from training_sets import write_miniatures

from anchor3r.cli.main import main
from anchor3r.store import load_map
from anchor3r.trajectory import Trajectory

WORLD = "world:3?motion=driving&frames=12&width=64&height=48"


def make_material(folder: Path) -> None:
    """Writes everything into the folder; runs in the process that forks the cases."""
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    folder.mkdir(parents=True)
    _maps(folder)
    _graphs(folder)
    _texts(folder)
    _pictures(folder)
    _checkpoints(folder)
    _projects(folder)
    _tracks(folder / "tracks")
    write_miniatures(folder / "sets")
    _command("data", "check", "blendedmvs", folder / "sets/blendedmvs", "--sequences", "1", "--pairs", "2")
    _command("batch", _manifest(folder / "manifest.csv"), "--out", folder / "batch")


def _command(*arguments: str | Path) -> None:
    code = main([str(argument) for argument in arguments])
    assert code == 0, arguments


def _maps(folder: Path) -> None:
    exact = ["--predictor", "ground-truth:0.1,0.01"]
    _command("map", WORLD, *exact, "--loops", "off", "--out", folder / "map")
    _command("refine", folder / "map", "--keyframe-interval", "2", "--descriptor", "gradients")
    _add_loops(folder / "map")
    _command("map", WORLD, *exact, "--seed", "1", "--out", folder / "other")
    _command("merge", folder / "map", folder / "other", "--out", folder / "both")
    _command("localise", folder / "map", WORLD, "--stop", "2", "--out", folder / "found.tum")
    _command("densify", folder / "map", "--every", "4", "--threads", "1", "--no-fuse")
    _command("fuse", folder / "map", "--depths", "predicted", "--min-component", "10", "--min-views", "1")
    _command("export", folder / "map", "--format", "mesh", "--out", folder / "mesh.ply")
    for kind in ("tum", "kitti", "euroc", "ply", "g2o", "glb"):
        _command("export", folder / "map", "--format", kind, "--out", folder / f"map.{kind}")
    _command("view", folder / "map", "--save", folder / "page")
    _command("report", folder / "map", "--out", folder / "report.html")
    _command("evaluate", "map", folder / "map", "--out", folder / "evaluated")


def _add_loops(folder: Path) -> None:
    """A short drive has none: a loop event, so that damage can be done to one."""
    from anchor3r.pose_graph.edges import EdgeKind, Edges
    from anchor3r.store import Loop, LoopState, MapWriter

    edges = Edges.of(
        np.array([0, 1]), 11, np.eye(3), np.array([0.0, 0, 1]), kind=EdgeKind.LOOP, information=np.eye(6)
    )
    loop = Loop(event=0, query=11, match=0, state=LoopState.FITS, figures={"chi2": 1.0})
    with MapWriter.open(folder) as writer:
        writer.write_loops([(loop, [edges])])


def _graphs(folder: Path) -> None:
    from anchor3r.io.graph_files import save_graph

    with load_map(folder / "map") as scene_map:
        save_graph(folder / "graph.npz", scene_map.graph())
    _command("solve", folder / "graph.npz", "--out", folder / "solved.tum")
    _command("solve", folder / "map.g2o", "--loss", "none", "--method", "joint")
    _command("solve", folder / "map.g2o", "--method", "decoupled")
    _command("solve", folder / "map.g2o", "--method", "paper")


def _texts(folder: Path) -> None:
    variants = {"online": {"ate_rmse_m": 1.0}, "offline": {"ate_rmse_m": 0.5}}
    results = {
        "format_version": 1, "benchmark": "kitti", "method": "a", "config": {},
        "protocol": {"metrics": ["ate_rmse_m"], "alignment": "sim3"}, "versions": {"python": "3"}, "hardware": {},
        "sequences": {"00": {
            "num_frames": 5, "variants": variants, "runtime": {"seconds": 1.0}, "made_from": {"window": 10},
        }},
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(results))
    _command("evaluate", "trajectory", folder / "map.tum", folder / "map.tum", "--out", folder / "figures")
    _command("evaluate", "compare", folder / "results.json")
    poses = np.tile(np.eye(4), (12, 1, 1))
    poses[:, 2, 3] = np.arange(12)
    np.savez(folder / "poses.npz", poses=poses, timestamps=np.arange(12) / 10)
    np.save(folder / "poses.npy", poses)


def _pictures(folder: Path) -> None:
    _command("world", "--out", folder / "kitti", "--seed", "3", "--frames", "6", "--width", "64",
             "--height", "48", "--motion", "driving")  # fmt: skip
    images = folder / "images"
    images.mkdir()
    for number in range(4):
        image = Image.open(folder / f"kitti/sequences/03/image_2/{number:06d}.png")
        image.save(images / f"{number}.png")
        for suffix in ("png", "jpg", "webp", "tif", "bmp", "ppm", "jp2", "gif"):
            exif = {"exif": _photograph(number)} if suffix == "jpg" else {}
            image.save(folder / f"{number}.{suffix}", **exif)
    _video(folder / "clip.mp4", images)
    _bags(folder)
    # Too few frames for a pose, which is no matter: the kernels are loaded.
    main(["map", str(folder / "clip.mp4"), "--predictor", "features", "--out", str(folder / "of-clip")])
    _tum(folder / "tum", images)
    _slam_sets(folder)
    _seven_scenes(folder / "7scenes", images)


def _photograph(number: int) -> Image.Exif:
    """What a telephone writes into a photograph: when, where, with which lens, and how it was held."""
    exif = Image.Exif()
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Orientation] = "a telephone", 6
    details, place = exif.get_ifd(ExifTags.IFD.Exif), exif.get_ifd(ExifTags.IFD.GPSInfo)
    details[ExifTags.Base.DateTimeOriginal] = f"2024:05:06 07:08:{9 + number:02d}"
    details[ExifTags.Base.FocalLength], details[ExifTags.Base.FocalLengthIn35mmFilm] = 4.2, 28
    place[1], place[2], place[3], place[4] = "N", (48.0, 1.0, 2.0 + number), "E", (11.0, 1.0, 2.0)
    place[5], place[6] = b"\0", 500.0
    return exif


def _video(path: Path, images: Path) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for image in sorted(images.glob("*.png")) * 3:
            for packet in stream.encode(av.VideoFrame.from_image(Image.open(image).convert("RGB"))):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _bags(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from recordings import (
        Recorded,
        write_foxglove,
        write_json_mcap,
        write_ros1,
        write_ros2,
        write_ros2_mcap_file,
    )

    recorded = Recorded()
    write_ros1(folder / "run", recorded)
    write_foxglove(folder / "run", recorded)
    write_json_mcap(folder / "json", recorded)
    write_ros2_mcap_file(folder / "ros2-mcap", recorded).rename(folder / "ros2.mcap")
    (ros2,) = write_ros2(folder / "ros2", recorded).glob("*.db3")
    shutil.copy(ros2, folder / "run.db3")
    main(["map", f"bag:{folder / 'run.bag'}", "--predictor", "features", "--out", str(folder / "of-bag")])


def _tum(folder: Path, images: Path) -> None:
    (folder / "rgb").mkdir(parents=True)
    rgb, truth = ["# colour images"], ["# timestamp tx ty tz qx qy qz qw"]
    for number, image in enumerate(sorted(images.glob("*.png"))):
        (folder / "rgb" / image.name).write_bytes(image.read_bytes())
        rgb.append(f"{number / 10:.4f} rgb/{image.name}")
        truth.append(f"{number / 10:.4f} 0 0 {number} 0 0 0 1")
    (folder / "rgb.txt").write_text("\n".join(rgb) + "\n")
    (folder / "groundtruth.txt").write_text("\n".join(truth) + "\n")


def _slam_sets(folder: Path) -> None:
    """EuRoC, ICL-NUIM, Replica and ETH3D-SLAM."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "sources"))
    from test_slam_datasets import write_euroc, write_replica

    write_euroc(folder / "slam")[0].rename(folder / "euroc")
    write_replica(folder / "replica")
    shutil.copytree(folder / "tum", folder / "eth3d")
    (folder / "eth3d/calibration.txt").write_text("60 60 32 24\n")
    icl = folder / "icl"
    for name in ("rgb", "depth"):
        (icl / name).mkdir(parents=True)
    for number in range(1, 5):
        shutil.copy(folder / f"{number - 1}.png", icl / f"rgb/{number}.png")
        Image.fromarray(np.full((48, 64), 5000 * number, np.uint16)).save(icl / f"depth/{number}.png")
    (icl / "room.gt.freiburg").write_text("".join(f"{k} 0 0 {k / 10} 0 0 0 1\n" for k in range(1, 5)))


def _tracks(folder: Path) -> None:
    """Where the camera of the map was, in every format of positions; and how fast."""
    (folder / "oxts/data").mkdir(parents=True)
    with load_map(folder.parent / "map") as scene_map:
        truth = scene_map.true_trajectory()
    assert truth is not None
    assert truth.timestamps_s is not None
    gpx, nmea, table, local, captions, moments = [], [], [], [], [], []
    for k, (time_s, (x, _, z)) in enumerate(
        zip(truth.timestamps_s, truth.world_from_camera.translation, strict=True)
    ):
        latitude, longitude = 48 + z / 111_000, 11 + x / 74_000
        clock = f"00:00:{time_s:09.6f}"
        gpx.append(
            f'<trkpt lat="{latitude:.8f}" lon="{longitude:.8f}"><ele>500</ele><time>1970-01-01T{clock}Z</time></trkpt>'
        )
        minutes = [f"{60 * (value % 1):08.5f}" for value in (latitude, longitude)]
        body = (
            f"GPGGA,{clock.replace(':', '')[:10]},48{minutes[0]},N,011{minutes[1]},E,1,08,0.9,500.0,M,0,M,,"
        )
        nmea.append(f"${body}*{np.bitwise_xor.reduce(np.frombuffer(body.encode(), np.uint8)):02X}")
        table.append(f"{time_s},{latitude:.8f},{longitude:.8f},500,1.5")
        local.append(f"{time_s},{x},{z},0,0.1")
        captions.append(f"{k + 1}\n{clock[:12].replace('.', ',')} --> {clock[:12].replace('.', ',')}\n"
                        f"[latitude: {latitude:.8f}] [longitude: {longitude:.8f}] [altitude: 500]\n")  # fmt: skip
        moments.append(f"1970-01-01 {clock}000")
        (folder / f"oxts/data/{k:010d}.txt").write_text(f"{latitude:.8f} {longitude:.8f} 500 " + "1 " * 27)
    (folder / "track.gpx").write_text("<gpx><trk><trkseg>" + "\n".join(gpx) + "</trkseg></trk></gpx>")
    (folder / "track.nmea").write_text("\n".join(nmea) + "\n")
    (folder / "track.csv").write_text("\n".join(["time,latitude,longitude,altitude,sigma", *table]) + "\n")
    (folder / "local.csv").write_text("\n".join(["time,x,y,z,sigma", *local]) + "\n")
    (folder / "track.srt").write_text("\n".join(captions))
    (folder / "oxts/timestamps.txt").write_text("\n".join(moments) + "\n")
    (folder / "speed.txt").write_text(
        "".join(f"{time_s} {5 + k % 3}\n" for k, time_s in enumerate(truth.timestamps_s))
    )
    (folder / "directions.csv").write_text(
        "frame,down_x,down_y,down_z,sigma,heading,heading_sigma\n"
        + "".join(f"{k},0,1,0.0{k % 3},2,{10 + k},5\n" for k in range(12))
    )
    (folder / "surveyed.txt").write_text(
        "".join(f"{k} {k / 2} {k} 0 0.1\n" for k in range(0, 10, 2)) + "11 5 11 0 0 0 0 1 0.1\n"
    )
    _telemetry(folder, truth)
    shutil.copytree(folder.parent / "map", folder.parent / "placed")
    _command(
        "refine",
        folder.parent / "placed",
        "--no-loops",
        "--gnss",
        folder / "local.csv",
        "--gnss-sigma",
        "0.01",
    )


def _telemetry(folder: Path, truth: Trajectory) -> None:
    """Movies of a GoPro of both kinds, which hold the positions of a camera and nothing else."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "sources"))
    from test_position_sources import gps9, telemetry, write_gopro

    assert truth.timestamps_s is not None
    x, _, z = truth.world_from_camera.translation.T
    places = np.stack([48 + z / 111_000, 11 + x / 74_000, np.full(len(x), 500.0)], 1)
    length_s = 4 * float(truth.timestamps_s[1] - truth.timestamps_s[0])
    parts = [places[k : k + 4] for k in range(0, len(places), 4)]
    write_gopro(folder / "gps5.mp4", [telemetry(3, part) for part in parts], length_s)
    write_gopro(folder / "gps9.mp4", [gps9(part, [3] * len(part), 0.0) for part in parts], length_s)


def _manifest(path: Path) -> Path:
    path.write_text(f"source,predictor,stop,export\n{WORLD},ground-truth,3,tum\n")
    return path


def _seven_scenes(folder: Path, images: Path) -> None:
    folder.mkdir()
    for number, image in enumerate(sorted(images.glob("*.png"))):
        stem = folder / f"frame-{number:06d}"
        stem.with_suffix(".color.png").write_bytes(image.read_bytes())
        pose = np.eye(4)
        pose[2, 3] = number
        np.savetxt(stem.with_suffix(".pose.txt"), pose)


def _checkpoints(folder: Path) -> None:
    import torch

    from anchor3r.model.checkpoints import save_checkpoint
    from anchor3r.model.config import PRESETS, shrunk
    from anchor3r.model.network import Anchor3RNetwork

    torch.manual_seed(0)
    network = Anchor3RNetwork(shrunk(PRESETS["tiny"], dim=16, num_heads=2, window=3))
    save_checkpoint(folder / "net.safetensors", network.state_dict(), config=network.config.to_json())
    torch.save(network.state_dict(), folder / "net.pt")
    torch.save({"state_dict": {"a": torch.zeros(3)}}, folder / "other.pth")
    _command("map", WORLD, "--predictor", folder / "net.safetensors", "--stop", "4", "--out",
             folder / "of-network")  # fmt: skip


def _projects(folder: Path) -> None:
    _command("export", folder / "map", "--format", "colmap", "--images", "map", "--out", folder / "colmap")
    _command("import", folder / "map.tum", "--source", WORLD, "--out", folder / "imported")
