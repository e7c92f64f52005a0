"""From a name on the command line to a predictor."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor3r.errors import Anchor3RError
from anchor3r.model import TINY_WEIGHTS
from anchor3r.predictors.interface import Dtype, Predictor

if TYPE_CHECKING:
    from anchor3r.predictors.features.predictor import FeaturesPredictor
    from anchor3r.predictors.network.predictor import NetworkPredictor

AUTO_REASON = (
    "features measures, and the tiny network answers for frames that it cannot relate (docs/algorithm.md)"
)
"""What "auto" is."""
_WITHOUT_PATH = ("auto", "tiny", "features", "ground-truth")
_KNOWN = "auto, tiny, features, PATH of a checkpoint, vggt:PATH, ground-truth[:DEGREES,FRACTION]"


def load_predictor(
    name: str = "auto",
    *,
    window: int | None = None,
    seed: int = 0,
    every: int = 1,
    device: str = "auto",
    dtype: Dtype = "auto",
    compile: bool = False,
) -> Predictor:
    """Builds the predictor of a name; `window` None is the predictor's own, `every` is VGGT's alone.

    "auto" is "features", helped by "tiny" where it has no answer; "tiny" the network that ships; "features"
    classical geometry without weights; a path one of our checkpoints; "vggt:PATH" public VGGT weights, run
    window by window; "ground-truth:0.2,0.02" the source's own ground truth with 0.2° and 2 % noise, for
    tests.
    """
    run_on = {"device": device, "dtype": dtype, "compile": compile}
    predictor = _built(name, window, seed, every, run_on)
    # On which device, and whether compiled, belongs to the machine: another one has others.
    predictor.loaded_as = {
        "name": _absolute(name), "window": window, "seed": seed, "every": every, "dtype": dtype,
    }  # fmt: skip
    return predictor


def _built(name: str, window: int | None, seed: int, every: int, run_on: dict[str, Any]) -> Predictor:
    kind, _, argument = name.partition(":")
    if kind == "vggt" and argument:
        return _vggt(Path(argument), window, every, run_on)
    if every != 1:
        raise Anchor3RError(f"--every {every} is for vggt:PATH; {name!r} takes every frame as anchor")
    if name == "auto":
        return _combined(window, run_on)
    if name == "tiny" or Path(name).is_file():
        return _network(TINY_WEIGHTS if name == "tiny" else Path(name), window, run_on)
    if run_on["device"] not in ("auto", "cpu") or run_on["dtype"] == "bfloat16" or run_on["compile"]:
        raise Anchor3RError(
            f"--device, --dtype and --compile are for networks; {name!r} has none and runs on the CPU"
        )
    if kind == "ground-truth":
        return _ground_truth(argument, window, seed)
    if name == "features":
        return _features(window)
    raise Anchor3RError(f"there is no predictor {name!r}, nor a file of that name; there are: {_KNOWN}")


def _absolute(name: str) -> str:
    """The name with the whole path of its weights, so that it holds in any folder."""
    kind, colon, path = name.rpartition(":")
    if name in _WITHOUT_PATH or kind == "ground-truth":
        return name
    return f"{kind}{colon}{os.path.realpath(path)}"


def weights_file(name: str) -> Path | None:
    """What `load_predictor` would read for that name; None for predictors without weights."""
    kind, _, argument = name.partition(":")
    if name == "features" or kind == "ground-truth":
        return None
    path = TINY_WEIGHTS if name in ("auto", "tiny") else Path(argument if kind == "vggt" else name)
    return path if path.is_file() else None


def _network(checkpoint: Path, window: int | None, run_on: dict[str, Any]) -> NetworkPredictor:
    if not checkpoint.is_file():
        raise Anchor3RError(
            f"this installation lacks the weights of the tiny network ({checkpoint}); "
            f"reinstall it, or choose another --predictor: {_KNOWN}"
        )
    from anchor3r.predictors.network.predictor import NetworkPredictor

    return NetworkPredictor.load(
        checkpoint,
        window=window,
        device=run_on["device"],
        dtype=run_on["dtype"],
        compile_parts=run_on["compile"],
    )


def _vggt(checkpoint: Path, window: int | None, every: int, run_on: dict[str, Any]) -> Predictor:
    if run_on["compile"]:
        raise Anchor3RError("--compile is for our own networks; vggt:PATH runs as it is")
    from anchor3r.predictors.vggt import VGGTPredictor, VGGTPredictorConfig

    try:
        config = VGGTPredictorConfig(every=every, **_given(window=window))
    except ValueError as error:
        raise Anchor3RError(str(error)) from error
    return VGGTPredictor.load(checkpoint, config, device=run_on["device"], dtype=run_on["dtype"])


def _combined(window: int | None, run_on: dict[str, Any]) -> Predictor:
    """`window` is that of `features`: the network's is fixed."""
    from anchor3r.predictors.combined import CombinedPredictor

    return CombinedPredictor(_features(window), _network(TINY_WEIGHTS, None, run_on))


def _features(window: int | None) -> FeaturesPredictor:
    from anchor3r.predictors.features.config import FeaturesConfig
    from anchor3r.predictors.features.predictor import FeaturesPredictor

    try:
        config = FeaturesConfig(**_given(window=window))
    except ValueError as error:
        largest = FeaturesConfig.memory + 1
        raise Anchor3RError(f"--window {window}: features takes windows of 3 to {largest} frames") from error
    return FeaturesPredictor(config)


def _ground_truth(argument: str, window: int | None, seed: int) -> Predictor:
    from anchor3r.predictors.ground_truth import GroundTruthConfig, GroundTruthPredictor

    try:
        rotation_deg, translation_fraction = map(float, (argument or "0,0").split(","))
    except ValueError:
        rotation_deg = translation_fraction = math.nan
    if not (math.isfinite(rotation_deg) and math.isfinite(translation_fraction)):
        raise Anchor3RError(
            f"ground-truth:{argument} does not say how noisy it should be; "
            "write for example ground-truth:0.2,0.02 for 0.2 degrees and 2 % of the length"
        )
    config = GroundTruthConfig(
        rotation_deg=rotation_deg,
        translation_fraction=translation_fraction,
        seed=seed,
        **_given(window=window),
    )
    return GroundTruthPredictor(config)


def _given(**values: int | None) -> dict[str, Any]:
    """The values that are not left to the config's own default."""
    return {name: value for name, value in values.items() if value is not None}
