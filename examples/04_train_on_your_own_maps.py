"""Adapt the tiny network to your own camera and place: maps that you have made are its training data.

python examples/04_train_on_your_own_maps.py OUT MAP [MAP ...]

Poses and depths of refined maps are the targets, weighted by how sure they are. The network begins with the
weights that ship. `anchor3r map VIDEO --predictor OUT/best.safetensors` uses the result; whether it is better
than before is for `anchor3r evaluate` to say, on a video that it was not trained on.
"""

import os
import sys
from pathlib import Path

from anchor3r.datasets.index import index_set
from anchor3r.predictors.loading import TINY_WEIGHTS
from anchor3r.training.distributed import processes
from anchor3r.training.mixture import open_sets
from anchor3r.training.recipes import load_recipe
from anchor3r.training.trainer import RunConfig, Trainer

STEPS = int(os.environ.get("STEPS", "200"))
"""Some minutes on one core."""


def main(out: str, *maps: str) -> None:
    sampling = load_recipe("tiny").data.sampling
    sets = open_sets(tuple(f"map:{folder}" for folder in maps), sampling, index_set)
    recipe = load_recipe("tiny", sets=sets, init=str(TINY_WEIGHTS), steps=STEPS)
    with processes() as group:
        trainer = Trainer(recipe, RunConfig(out=Path(out), resume=True), group)
        trainer.run(lambda now: print(f"step {now.step} of {now.steps}: loss {now.loss:.3f}"))
    print(f"{out}/best.safetensors: the adapted network")


if __name__ == "__main__":
    main(*sys.argv[1:])
