"""How many small errors the tests notice: mutants of modules against the tests that stand beside them.

In a copy of the project one operator, comparison or number of a module is changed at a time, and the
module's tests are run. A mutant that makes them fail is killed; one that survives shows something that no
test looks at (or a change that makes no difference). Places are drawn with a seed. Prints each mutant and the
rate.

    python benchmarks/mutants.py --each 5
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = Path("src/anchor3r")
TESTS = {
    "pose_graph/online.py": ["tests/pose_graph/test_online.py"],
    "pose_graph/edges.py": ["tests/pose_graph/test_edges.py"],
    "pose_graph/noise.py": ["tests/pose_graph/test_noise.py", "tests/pose_graph/test_joint.py"],
    "pose_graph/joint.py": ["tests/pose_graph/test_joint.py"],
    "pose_graph/verification.py": ["tests/pose_graph/test_verification.py"],
    "pose_graph/loop_events.py": ["tests/pose_graph/test_verification.py"],
    "pose_graph/online_placement.py": [
        "tests/pose_graph/test_online_placement.py",
        "tests/pipeline/test_placing.py",
    ],
    "loops/retrieval.py": ["tests/loops/test_retrieval.py"],
    "loops/reinsertion.py": ["tests/pipeline/test_refine.py"],
    "pipeline/refine.py": ["tests/pipeline/test_refine.py"],
    "pipeline/loop_search.py": ["tests/pipeline/test_refine.py"],
    "pipeline/loop_closing.py": ["tests/pipeline/test_loop_closing.py"],
    "pipeline/placing.py": ["tests/pipeline/test_placing.py"],
    "pipeline/directions.py": ["tests/pipeline/test_directions.py"],
    "pipeline/mapper.py": ["tests/pipeline/test_mapper.py", "tests/pipeline/test_mapping.py"],
    "store/writer.py": ["tests/store"],
    "store/reader.py": ["tests/store", "tests/pipeline/test_mapping.py"],
    "store/stored_poses.py": ["tests/store", "tests/pipeline/test_mapping.py"],
    "store/stored_loops.py": ["tests/store", "tests/pipeline/test_refine.py"],
    "store/queries.py": ["tests/store"],
    "predictors/features/uncertainty.py": ["tests/predictors/test_features_uncertainty.py"],
}
"""Module: the tests that should notice an error in it."""
TIMEOUT_S = 600
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change to a module."""

    line: int
    before: str
    after: str
    text: str
    """the whole module with the change"""


def mutants(text: str) -> Iterator[Mutant]:
    """Every mutant of a module, with its types, messages and shapes left alone."""
    tree = ast.parse(text)
    for node in _computing(tree):
        before = ast.unparse(node)
        for undo in _changes(node):
            yield Mutant(getattr(node, "lineno", 0), before, ast.unparse(node), ast.unparse(tree))
            undo()


def _computing(tree: ast.Module) -> Iterator[ast.expr]:
    """Expressions inside functions that compute something."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    if isinstance(node, ast.BinOp | ast.Compare | ast.BoolOp | ast.Constant):
                        yield node


def _changes(node: ast.expr) -> Iterator[object]:
    """Changes the node in place, and yields what changes it back."""
    if isinstance(node, ast.Constant):
        if type(node.value) in (int, float):
            value = node.value
            node.value = value + 1
            yield lambda: setattr(node, "value", value)
        return
    if isinstance(node, ast.Compare):
        operators = node.ops
        if type(operators[0]) in _SWAPS:
            node.ops = [_SWAPS[type(operators[0])](), *operators[1:]]
            yield lambda: setattr(node, "ops", operators)
        return
    operator = getattr(node, "op", None)
    if type(operator) in _SWAPS:
        node.op = _SWAPS[type(operator)]()
        yield lambda: setattr(node, "op", operator)


def survives(project: Path, module: str, text: str) -> bool:
    """Whether the module's tests pass with this text in its place."""
    path = project / SOURCES / module
    original = path.read_text()
    path.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS[module]]
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    try:
        result = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(original)
    return result.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--each", type=int, default=5, help="mutants of each module")
    parser.add_argument("--modules", nargs="*", default=list(TESTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch) / "project"
        shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".venv", ".git", "out"))
        for module in arguments.modules:
            text = (ROOT / SOURCES / module).read_text()
            if not survives(project, module, ast.unparse(ast.parse(text))):
                parser.exit(
                    1, f"{' '.join(TESTS[module])}: fails without any mutant, so that it tells nothing\n"
                )
            choices = list(mutants(text))
            generator = random.Random(f"{arguments.seed} {module}")
            for mutant in generator.sample(choices, min(arguments.each, len(choices))):
                survived = survives(project, module, mutant.text)
                rows.append({
                    "module": module, "line": mutant.line, "before": mutant.before, "after": mutant.after,
                    "survived": survived,
                })  # fmt: skip
                (arguments.out / "mutants.json").write_text(json.dumps(rows, indent=1))
                verdict = "SURVIVED" if survived else "killed"
                print(f"{verdict:9} {module}:{mutant.line}  {mutant.before}  ->  {mutant.after}", flush=True)
    killed = sum(not row["survived"] for row in rows)
    print(f"{killed} of {len(rows)} mutants killed ({100 * killed / max(1, len(rows)):.0f} %)")


if __name__ == "__main__":
    main()
