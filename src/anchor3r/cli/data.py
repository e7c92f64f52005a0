"""`anchor3r data`: what there is to train on, whether a download is right, and shards of it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anchor3r.cli.output import Json, print_json
from anchor3r.cli.progress import progress
from anchor3r.errors import Anchor3RError
from anchor3r.limits import LIMITS

if TYPE_CHECKING:
    from anchor3r.datasets import DataSet
    from anchor3r.datasets.index import SetIndex


def list_sets(
    root: Annotated[Path | None, tyro.conf.Positional] = None, as_json: Json = False
) -> dict[str, Any]:
    """List the data sets that can be trained on, or those found under a root.

    Args:
        root: Folder that holds a folder (or link) for each data set, called by its name.
    """
    from rich.console import Console
    from rich.table import Table

    from anchor3r.datasets import DATA_SETS
    from anchor3r.datasets.index import find_roots

    table = Table(*("name", "data set", "kind", "depth", "order"), box=None, pad_edge=False)
    found = {} if root is None else find_roots(root, DATA_SETS)
    if root is not None:
        for column in ("sequences", "frames", "unusable"):
            table.add_column(column, justify="right")
    sets: list[dict[str, Any]] = []
    for name, dataset in DATA_SETS.items():
        card, figures = dataset.card, {}
        row = [name, card.title, card.kind, card.depth, "video" if card.ordered else "none"]
        if root is None:
            table.add_row(*row)
        elif name in found:
            index = index_with_progress(dataset, found[name])
            frames = sum(entry.num_posed for entry in index.entries)
            counts = len(index.entries), frames, len(index.broken)
            table.add_row(*row, *(f"{count:,}" for count in counts))
            figures = dict(zip(("sequences", "frames", "unusable"), counts, strict=True))
        if root is None or name in found:
            described = asdict(card) | {"root": found.get(name)} | figures
            sets.append(described)
    Console(width=130).print(table)
    return {"root": root, "sets": sets}


def check(
    name: Annotated[str, tyro.conf.Positional],
    root: Annotated[Path, tyro.conf.Positional],
    sequences: int = 3,
    pairs: int = 6,
    out: Path | None = None,
    seed: int = 0,
    as_json: Json = False,
) -> dict[str, Any]:
    """Tell whether a download is right: pairs of frames are warped through depth and pose.

    The error is compared with that of random poses and of every common mistake: units, axes, inverted or
    shifted poses. Exits with 1 if something is wrong.

    Args:
        name: Of the data set, as `anchor3r data list` has it.
        root: Where it was unpacked.
        sequences: How many of its sequences to look at.
        pairs: Pairs of frames of each.
        out: Picture to write: both frames, the second one warped into the first, and their difference.
        seed: Of the sequences and frames chosen.
    """
    import numpy as np
    from PIL import Image

    from anchor3r.datasets.check import check_recordings, draw_pairs
    from anchor3r.io.files import check_output, replacing

    if out is not None:
        inside = Path(os.path.realpath(root)) in Path(os.path.realpath(out)).parents
        check_output(out, inputs=[out] if inside else [])
    if min(sequences, pairs) < 1 or not 0 <= seed <= LIMITS.seed:
        raise Anchor3RError(
            f"--sequences {sequences} and --pairs {pairs} must be at least 1, --seed 0 or more"
        )

    index = index_with_progress(data_set(name), root)
    order = np.random.default_rng(seed).permutation(len(index.entries))[:sequences]
    recordings = [index.recording(index.entries[k].name) for k in order]
    result, drawn = check_recordings(recordings, pairs_each=pairs, seed=seed)
    _tell_sequences(index, root)
    print(result.in_words())
    if out is not None:
        with replacing(out) as file:
            Image.fromarray(draw_pairs(drawn)).save(file, "PNG")
        print(f"{out}: pairs, warped pictures and their differences")
    failure = None
    if not result.right:
        failure = f"{root} does not hold together as {index.dataset.card.title}; see above"
    told = {
        "root": root, "sequences": len(index.entries), "unusable": [reason for _, reason in index.broken],
        "pairs": result.num_pairs, "given": result.given, "random": result.random, "blamed": result.blamed,
        "right": result.right, "failure": failure, "picture": out,
    }  # fmt: skip
    if failure is not None:
        print_json("data-check", told)
        raise Anchor3RError(failure)
    return told


def _tell_sequences(index: SetIndex, root: Path) -> None:
    print(f"{len(index.entries)} sequences of {index.dataset.card.title} in {root}")
    for _, reason in index.broken[:5]:
        print(f"  unusable: {reason}")
    if len(index.broken) > 5:
        print(f"  and {len(index.broken) - 5} more")


def pack(
    root: Annotated[Path, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional],
    shard_gb: float = 4.0,
    as_json: Json = False,
) -> dict[str, Any]:
    """Pack the files of a data set into tar shards, which are read wherever the data set itself would be.

    Args:
        root: Where the data set was unpacked.
        out: New folder for the shards.
        shard_gb: Size of a shard, about.
    """
    from anchor3r.datasets.files import open_files
    from anchor3r.datasets.files import pack as pack_files

    if not 1e-6 <= shard_gb <= 1e4:
        raise Anchor3RError(f"--shard-gb must lie in 0.000001 … 10000, not {shard_gb:g}")
    with progress("packing", None, "files") as advance:
        count = pack_files(open_files(root), out, shard_bytes=int(shard_gb * 1e9), on_progress=advance)
    print(f"{out}: {count} shards; use it in place of {root}")
    return {"root": root, "out": out, "shards": count}


def data_set(name: str) -> DataSet:
    """A data set by its name on the command line."""
    from anchor3r.datasets import DATA_SETS

    if name not in DATA_SETS:
        raise Anchor3RError(f"no data set is called '{name}'; there are {', '.join(DATA_SETS)}")
    return DATA_SETS[name]


def index_with_progress(dataset: DataSet, root: Path, *, anew: bool = False) -> SetIndex:
    """The index of a data set; shows how far it is where sequences have to be looked at."""
    from anchor3r.datasets.index import index_set

    label = f"indexing {dataset.card.name}"
    with progress(label, None, "sequences") as advance:
        return index_set(
            dataset, root, anew=anew, on_progress=lambda done, total, _: advance(done, f"{label} of {total}")
        )


COMMANDS = {"list": list_sets, "check": check, "pack": pack}
