"""Two steps of the toy recipe in a process that torchrun started: OUT ddp|fsdp."""

import sys
from pathlib import Path

import torch
from toy_data import wall_recipe

from anchor3r.training import validation
from anchor3r.training.distributed import processes
from anchor3r.training.trainer import RunConfig, Trainer

torch.set_num_threads(1)
validation.NUM_BATCHES = 1
recipe = wall_recipe(steps=3, clips=1, sharding=sys.argv[2])
with processes() as group:
    config = RunConfig(out=Path(sys.argv[1]), log_every=1, validate_every=10_000, stop_after=2)
    Trainer(recipe, config, group).run()
