"""Trains a shrunk transformer on the data sets under a root, in a process that torchrun started.

OUT ROOT PRESET STOP: with real image sizes, up to a step, from where the folder's state is.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from anchor3r.datasets.index import index_set
from anchor3r.model.config import PRESETS, shrunk
from anchor3r.training import validation
from anchor3r.training.distributed import processes
from anchor3r.training.mixture import open_mixture
from anchor3r.training.recipes import paper
from anchor3r.training.trainer import RunConfig, Trainer

torch.set_num_threads(1)
validation.NUM_BATCHES = 1
out, root, preset, stop = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
recipe = paper()
data = replace(recipe.data, sets=open_mixture(recipe.mixture, root, index_set), num_frames=5)
network = shrunk(PRESETS[preset], window=3)
recipe = replace(recipe, network=network, data=data, steps=4, init=None)
with processes() as group:
    config = RunConfig(
        out=out, log_every=1, validate_every=10_000, stop_after=stop, resume=True, save_every_s=0
    )
    Trainer(recipe, config, group).run()
sys.stdout.flush()
# All is saved. Threads of torch's C++ libraries now and then abort a process that ends the usual way.
os._exit(0)
