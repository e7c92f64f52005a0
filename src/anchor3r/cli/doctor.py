"""`anchor3r doctor`: whether this installation works, and what it lacks."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

from anchor3r.cli.output import Json, print_json
from anchor3r.errors import Anchor3RError

Verdict = Literal["ok", "absent", "broken"]
_EXTRAS = {
    "viewer": ("viser", "anchor3r view"),
    "exports": ("pycolmap trimesh laspy", "export to COLMAP, GLB and LAS; photographs in no order"),
    "bags": ("rosbags mcap mcap_protobuf foxglove_schemas_protobuf", "bag: sources, export to MCAP"),
    "rerun": ("rerun", "map --rerun, export to rrd"),
    "heic": ("pillow_heif", "HEIC photographs"),
    "ray": ("ray", "batch and evaluate on a cluster, with --ray"),
    "training": ("tensorboard", "curves of a training in TensorBoard"),
    "data": ("h5py OpenEXR pyarrow pycolmap", "training data sets"),
}
"""Libraries of each extra, and what they are for."""
_CODECS = ("h264", "hevc", "av1", "vp9", "mjpeg", "prores")
_FREE_GB = 2.0
"""An hour of video makes a map of about this size."""
_MOST_PERCENT = 10.0
"""Of the path: both predictors stay far below, a computation that goes wrong does not."""
_WORLD = "world:1?motion=driving&frames=30&width=320&height=240"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    """absent: works without, but some uses need it"""
    found: str
    advice: str | None = None


def doctor(self_test: bool = True, as_json: Json = False) -> dict[str, Any]:
    """Check this installation: versions, GPU, extras, codecs, disk, and a map of ten seconds.

    Exits with 1 if something is broken. What is only absent is needed for some uses; its line says which, and
    how to get it.

    Args:
        self_test: Map a small world as well, which compiles kernels the first time.
    """
    checks = []
    parts: list[Callable[[], Iterator[Check]]] = [_versions, _gpu, _extras, _codecs, _places]
    for part in [*parts, *([_self_test] if self_test else [])]:
        for check in part():
            checks.append(check)
            print(_line(check), flush=True)
    broken = [check.name for check in checks if check.verdict == "broken"]
    result = {"healthy": not broken, "checks": [asdict(check) for check in checks]}
    if broken:
        print_json("doctor", result)
        raise Anchor3RError(f"something is broken: {', '.join(broken)}; see above")
    return result


def _line(check: Check) -> str:
    text = f"{check.verdict:7} {check.name}: {check.found}"
    return text if check.advice is None else f"{text}\n        {check.advice}"


def _versions() -> Iterator[Check]:
    python = f"{platform.python_version()} on {platform.platform()}, {os.cpu_count()} cores"
    yield Check(name="python", verdict="ok", found=f"{python} ({sys.executable})")
    for name in ("anchor3r", "numpy", "scipy", "numba", "torch", "av", "opencv-python-headless", "pillow"):
        try:
            yield Check(name=name, verdict="ok", found=metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name=name, verdict="broken", found="not installed", advice="install anchor3r again")


def _gpu() -> Iterator[Check]:
    import torch

    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else ", and this build of torch has no CUDA"
        yield Check(name="gpu", verdict="absent", found=f"none{built}", advice="networks run on the CPU")
        return
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        memory = f"{device.total_memory / 2**30:.0f} GiB"
        yield Check(name=f"cuda:{number}", verdict="ok", found=f"{device.name}, {memory}")


def _extras() -> Iterator[Check]:
    from anchor3r.io.extras import install_command

    for extra, (libraries, purpose) in _EXTRAS.items():
        missing = [name for name in libraries.split() if util.find_spec(name) is None]
        yield Check(
            name=f"extra {extra}",
            verdict="absent" if missing else "ok",
            found=f"without {', '.join(missing)}" if missing else libraries.replace(" ", ", "),
            advice=f"for {purpose}: {install_command(extra)}" if missing else None,
        )


def _codecs() -> Iterator[Check]:
    import av

    known = [name for name in _CODECS if name in av.codecs_available]
    missing = [name for name in _CODECS if name not in known]
    yield Check(
        name="video codecs",
        verdict="absent" if missing else "ok",
        found=", ".join(known) + f" (FFmpeg of av {metadata.version('av')})",
        advice=f"cannot decode {', '.join(missing)}: convert such videos with ffmpeg" if missing else None,
    )


def _places() -> Iterator[Check]:
    for name, place in (("this folder", Path.cwd()), ("temporary files", Path(tempfile.gettempdir()))):
        free_gb = shutil.disk_usage(place).free / 1e9
        writable = os.access(place, os.W_OK)
        enough = free_gb >= _FREE_GB
        yield Check(
            name=name,
            verdict="ok" if writable and enough else "absent" if writable else "broken",
            found=f"{place}, {free_gb:.1f} GB free" + ("" if writable else ", not writable"),
            advice=None if writable and enough else "write maps to another place, with --out",
        )


def _self_test() -> Iterator[Check]:
    """Maps a small world with each predictor that ships, and measures what the result is off by."""
    import anchor3r
    from anchor3r.evaluation.metrics import Alignment
    from anchor3r.evaluation.scoring import score_poses
    from anchor3r.model import TINY_WEIGHTS

    for name in ("features", *(("tiny",) if TINY_WEIGHTS.is_file() else ())):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="anchor3r-doctor-") as scratch:
            folder = Path(scratch) / "map"
            try:
                anchor3r.map_source(_WORLD, folder, anchor3r.MapSettings(predictor=name))
                with anchor3r.load_map(folder) as scene_map:
                    metrics, _ = score_poses(scene_map, Alignment.SIM3, Path(scratch) / "scored", name)
            except Anchor3RError as error:
                yield Check(name=f"self-test {name}", verdict="broken", found=str(error))
                continue
        off = metrics["online"]["ate_percent"]
        off = float("inf") if off is None else off
        found = f"30 frames in {time.monotonic() - began:.1f} s, off by {off:.2f} % of the path"
        verdict: Verdict = "ok" if off < _MOST_PERCENT else "broken"
        yield Check(name=f"self-test {name}", verdict=verdict, found=found)
