"""The campaign: hostile inputs of every class through the command line.

    python tests/fuzz/campaign.py --cases 5000 --jobs 2 --out out/fuzz      make fuzz
    python tests/fuzz/campaign.py --corpus                                  what once failed
    python tests/fuzz/campaign.py --case '{"class": "maps", …}'             one case, kept to look at

Each case must end with exit code 0 and a right result, or with 1 or 2 and a line that explains it: never with
a traceback, a crash, a hang, more than 4 GB or a result that is silently wrong. Cases are drawn from the
seed, so that the same seed gives the same cases; those that fail belong into corpus.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads cannot be forked safely
sys.path.insert(0, str(Path(__file__).parent))

import bags
import checkpoints
import graphs
import manifests
import maps
import numpy as np
import options
import pictures
import positions
import texts
import training_sets
from case import Outcome, Recipe, fresh_folder, run_case
from raw_material import make_material

CLASSES = {
    "maps": (maps, 0.23),
    "checkpoints": (checkpoints, 0.12),
    "options": (options, 0.18),
    "graphs": (graphs, 0.12),
    "texts": (texts, 0.08),
    "pictures": (pictures, 0.11),
    "bags": (bags, 0.05),
    "positions": (positions, 0.05),
    "manifests": (manifests, 0.03),
    "training_sets": (training_sets, 0.03),
}
"""Generators, and their share of the cases."""
CORPUS = Path(__file__).parent / "corpus.jsonl"
SEED = 20
JSON_SHARE = 0.15
"""Of the cases, those that are asked for JSON."""


def drawn_cases(num_cases: int, seed: int, material: Path, only: str | None) -> Iterator[Recipe]:
    """Recipes of all classes by their shares, each from a generator of its own."""
    for name, (module, share) in CLASSES.items():
        if only in (None, name):
            for number in range(num_cases if only else round(share * num_cases)):
                rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
                recipe = module.draw(rng, material)
                yield (
                    recipe | {"json": True} if rng.random() < JSON_SHARE and "words" not in recipe else recipe
                )


def corpus() -> list[Recipe]:
    """Everything that ever failed."""
    return (
        [json.loads(line) for line in CORPUS.read_text().splitlines() if line.strip()]
        if CORPUS.exists()
        else []
    )


def attempt(recipe: Recipe, folder: Path, material: Path) -> Outcome:
    arguments, check = CLASSES[recipe["class"]][0].build(recipe, fresh_folder(folder), material)
    return run_case(recipe, arguments, folder, check)


def run_share(recipes: list[Recipe], share: int, jobs: int, work: Path, material: Path) -> None:
    """Runs every jobs-th recipe and writes outcomes, a line each."""
    with open(work / f"outcomes-{share}.jsonl", "w") as log:
        for recipe in recipes[share::jobs]:
            outcome = attempt(recipe, work / f"case-{share}", material)
            log.write(json.dumps(outcome.to_json()) + "\n")
            log.flush()
            if outcome.problem:
                print(
                    f"{outcome.problem}: {json.dumps(recipe)[:400]}\n    {outcome.message[-300:]}", flush=True
                )


def run_all(recipes: list[Recipe], jobs: int, work: Path, material: Path) -> list[dict]:
    """All outcomes, by as many processes at once."""
    children = []
    for share in range(jobs):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_share(recipes, share, jobs, work, material)
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children), "the campaign itself failed"
    logs = [work / f"outcomes-{share}.jsonl" for share in range(jobs)]
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def table(outcomes: list[dict]) -> str:
    """What came of the cases of each class."""
    lines = ["| class | cases | exit 0 | exit 1 | exit 2 | failed | CPU s | most CPU s | most MB |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name in [*CLASSES, "all"]:
        of_class = [o for o in outcomes if name in ("all", o["recipe"]["class"])]
        if not of_class:
            continue
        codes = Counter(o["code"] for o in of_class)
        cpu = [o["cpu_seconds"] for o in of_class]
        lines.append(
            f"| {name} | {len(of_class)} | {codes[0]} | {codes[1]} | {codes[2]} | "
            f"{sum(o['problem'] is not None for o in of_class)} | {sum(cpu):.0f} | {max(cpu):.1f} | "
            f"{max(o['peak_bytes'] for o in of_class) / 1e6:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=0, help="how many to draw")
    parser.add_argument("--seed", type=int, default=SEED, help="that they are drawn from")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--only", choices=list(CLASSES), help="cases of one class")
    parser.add_argument(
        "--part", default="0/1", help="I/N runs every N-th of the cases drawn, from the I-th on"
    )
    parser.add_argument("--corpus", action="store_true", help="run what once failed as well")
    parser.add_argument("--case", help="run one case, given as JSON, and keep its folder")
    parser.add_argument("--out", type=Path, help="new folder to work in; a temporary one if not given")
    given = parser.parse_args()
    work = given.out or Path(tempfile.mkdtemp(prefix="anchor3r-fuzz-"))
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    began, material = time.monotonic(), work.resolve() / "material"
    with open(work / "material.log", "w") as log:
        kept = [os.dup(1), os.dup(2)]
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        try:
            make_material(material)
        finally:
            sys.stdout.flush()
            for number, saved in zip((1, 2), kept, strict=True):
                os.dup2(saved, number)
    if given.case:
        outcome = attempt(json.loads(given.case), work / "case", material)
        print(json.dumps(outcome.to_json(), indent=1), (work / "case/stderr").read_text(), sep="\n")
        return int(outcome.problem is not None)
    recipes = corpus() if given.corpus else []
    drawn = list(drawn_cases(given.cases, given.seed, material, given.only))
    part, count = map(int, given.part.split("/"))
    recipes += [drawn[k] for k in np.random.default_rng(given.seed).permutation(len(drawn))[part::count]]
    outcomes = run_all(recipes, given.jobs, work.resolve(), material)
    print(table(outcomes))
    failed = [o for o in outcomes if o["problem"]]
    print(
        f"{len(outcomes)} cases in {time.monotonic() - began:.0f} s, {len(failed)} failed; seed {given.seed}"
    )
    (work / "failed.jsonl").write_text("".join(json.dumps(o["recipe"]) + "\n" for o in failed))
    if given.out is None and not failed:
        shutil.rmtree(work)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
