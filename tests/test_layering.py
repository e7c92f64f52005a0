"""The source tree keeps its own rules: imports go downward, heavy things come late, functions stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "anchor3r"
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
LAYERS = [
    {"errors"},
    {"geometry"},
    {"trajectory", "worlds"},
    {"sources"},
    {"model", "graph"},
    {"predictors"},
    {"store"},
    {"mapping"},
    {"outputs"},
    {"viewer"},
    {"reinsertion", "solving"},
    {"refinement"},
    {"evaluation"},
    {"training"},
    {"commands"},
    {"cli"},
    {"__init__", "__main__"},
]
"""From the bottom up: a module imports from its own package and from lower layers only."""
MAX_FUNCTION_LINES = 60
HEAVY = {"torch", "matplotlib", "cv2", "viser", "numba", "scipy", "av"}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(), module)


def package_of(module: str) -> str:
    """ "sources/frame.py" -> "sources", "mapping.py" -> "mapping"."""
    return module.removesuffix(".py").split("/")[0]


def imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "anchor3r":
                yield from (f"anchor3r.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def external_packages(module: str) -> set[str]:
    return {name.split(".")[0] for name in imported_names(tree_of(module))} - {"anchor3r"}


def layer_of(package: str) -> int:
    found = [k for k, layer in enumerate(LAYERS) if package in layer]
    assert found, f"{package} has no layer; give it one in this test"
    return found[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downward(module: str) -> None:
    package = package_of(module)
    for name in imported_names(tree_of(module)):
        parts = name.split(".")
        if parts[0] == "anchor3r" and len(parts) > 1 and parts[1] != package:
            assert layer_of(parts[1]) < layer_of(package), f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_libraries_stay_where_they_belong(module: str) -> None:
    external = external_packages(module)
    if package_of(module) not in ("commands", "cli"):
        assert not external & {"tyro", "rich"}, "only the command line knows tyro and rich"
    if package_of(module) != "viewer":
        assert "viser" not in external, "only the viewer knows viser"
    if package_of(module) == "graph":
        assert not external & {"torch", "cv2", "PIL", "av", "sqlite3"}, "the graph is numbers only"


@pytest.mark.parametrize("module", [m for m in MODULES if package_of(m) in ("__init__", "cli", "commands")])
def test_the_command_line_imports_heavy_libraries_late(module: str) -> None:
    top_level = ast.Module(
        [node for node in tree_of(module).body if isinstance(node, ast.Import | ast.ImportFrom)], []
    )
    assert not {name.split(".")[0] for name in imported_names(top_level)} & HEAVY


@pytest.mark.parametrize("module", MODULES)
def test_functions_are_short(module: str) -> None:
    functions = (
        n for n in ast.walk(tree_of(module)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    for function in functions:
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        assert length <= MAX_FUNCTION_LINES, f"{module}: {function.name} has {length} lines"


@pytest.mark.parametrize("module", MODULES)
def test_no_error_is_swallowed_unseen(module: str) -> None:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            assert not broad or raises_again, f"{module}:{node.lineno} catches everything"


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(tree_of(module)), f"{module} opens without saying what it is"
