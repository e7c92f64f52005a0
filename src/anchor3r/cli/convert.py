"""`anchor3r convert`: another model's weights as a start for ours."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from anchor3r.cli.output import Json
from anchor3r.errors import Anchor3RError
from anchor3r.io.files import check_output
from anchor3r.limits import LIMITS


def convert(
    kind: Annotated[Literal["vggt"], tyro.conf.Positional],
    model: Annotated[Path, tyro.conf.Positional],
    out: Path,
    seed: int = 0,
    as_json: Json = False,
) -> dict[str, Any]:
    """Initialise the network from VGGT and say what was taken, what is new and what was dropped.

    Args:
        kind: What the model is.
        model: Its weights, .safetensors or .pt.
        out: Where to write the initialised network (.safetensors).
        seed: Of the noise on the registers that VGGT does not have.
    """
    from rich.console import Console
    from rich.table import Table

    from anchor3r.model.checkpoints import save_checkpoint
    from anchor3r.model.convert import convert_vggt

    check_output(out, inputs=[model])
    if not 0 <= seed <= LIMITS.seed:
        raise Anchor3RError(f"--seed must lie in 0 … {LIMITS.seed}, not {seed}")
    network, account = convert_vggt(model, seed=seed)
    save_checkpoint(out, network.state_dict(), config=network.config.to_json())
    table = Table(title=f"{model} as a start for {out}")
    for heading in ("", "VGGT", "network"):
        table.add_column(heading)
    for heading in ("tensors", "parameters"):
        table.add_column(heading, justify="right")
    for part in account:
        count = f"{part.num_parameters:,}"
        table.add_row(part.fate, part.source, part.target, str(part.num_tensors), count)
    total = sum(parameter.numel() for parameter in network.parameters())
    console = Console()
    console.print(table)
    console.print(f"The network has {total:,} parameters and is in {out}.")
    return {"model": model, "out": out, "parameters": total, "parts": [asdict(part) for part in account]}
