"""The source tree keeps its own rules: which package may use which, what loads late, what is too long."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "anchor3r"
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
FOUNDATION = {
    "edge_aware",
    "errors",
    "framing",
    "geodesy",
    "geometry",
    "kernels",
    "limits",
    "records",
    "robust",
    "snapshots",
    "threads",
    "trajectory",
}
"""Pure functions and types that know neither files nor pipelines; every package may use them."""
USES: dict[str, set[str]] = {
    # package: the packages whose modules it imports, beside the foundation
    "worlds": {"io"},
    "model": {"io"},
    "pose_graph": set(),
    "dense": set(),
    "places": set(),
    "io": {"pose_graph"},
    "sources": {"worlds", "io"},
    "predictors": {"sources", "model"},
    "store": {"io", "sources", "predictors", "pose_graph", "dense", "places"},
    "loops": {"io", "sources", "model", "predictors", "pose_graph", "store", "places"},
    "export": {"io", "sources", "predictors", "pose_graph", "store", "pipeline"},
    "pipeline": {
        "io",
        "datasets",
        "sources",
        "predictors",
        "pose_graph",
        "store",
        "loops",
        "dense",
        "places",
    },
    "report": {"io", "predictors", "pose_graph", "store", "pipeline", "export"},
    "viewer": {"io", "predictors", "store"},
    "workers": {"io"},
    "batch": {"io", "sources", "store", "pipeline", "export", "report", "evaluation", "workers"},
    "datasets": {"io", "sources", "store"},
    "training": {"worlds", "sources", "model", "io", "store", "datasets"},
    "evaluation": {
        "io",
        "datasets",
        "sources",
        "predictors",
        "pose_graph",
        "store",
        "loops",
        "pipeline",
        "model",
        "workers",
    },
}
"""The layering. `docs/architecture.md` draws it and says why."""
INSIDE_FOUNDATION = {
    "errors": set(),
    "kernels": set(),
    "limits": set(),
    "records": {"errors"},
    "robust": set(),
    "snapshots": set(),
    "threads": {"errors", "limits"},
    "geometry": {"robust"},
    "trajectory": {"geometry", "errors", "robust"},
    "framing": {"trajectory"},
    "geodesy": set(),
    "edge_aware": {"kernels"},
}
ENTRANCES = {"cli", "__init__", "__main__"}
"""Use everything and are used by nothing."""
HOMES = {
    "tyro": {"cli"},
    "rich": {"cli"},
    "viser": {"viewer"},
    "sqlite3": {"store", "viewer"},
    "torch": {"model", "predictors", "loops", "training", "evaluation", "cli"},
}
"""Libraries that only some packages know."""
HEAVY = {"torch", "matplotlib", "cv2", "viser", "numba", "scipy", "av"}
MAX_FUNCTION_LINES = 60


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(), module)


def package_of(module: str) -> str:
    """ "sources/frame.py" -> "sources", "geometry.py" -> "geometry"."""
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


def used_packages(module: str) -> set[str]:
    """Of our own, other than the module's."""
    names = (name.split(".") for name in imported_names(tree_of(module)))
    return {parts[1] for parts in names if parts[0] == "anchor3r" and len(parts) > 1} - {package_of(module)}


def libraries(tree: ast.AST) -> set[str]:
    return {name.split(".")[0] for name in imported_names(tree)} - {"anchor3r"}


def allowed_packages(package: str) -> set[str]:
    if package in ENTRANCES:
        return FOUNDATION | set(USES) | ENTRANCES
    if package in FOUNDATION:
        return INSIDE_FOUNDATION[package]
    assert package in USES, f"{package} is new: say in this test and in docs/architecture.md what it uses"
    return FOUNDATION | USES[package]


def test_the_page_about_the_architecture_draws_this_layering() -> None:
    page = (ROOT.parents[1] / "docs/architecture.md").read_text()
    drawn = dict(re.findall(r"^\| (`?\w+`?) \| .* \| ([\w, –]+) \|$", page, re.MULTILINE))
    assert drawn.pop("package") == "uses"
    foundation = re.search(r"^\| foundation \| (.*) \| – \|$", page, re.MULTILINE)
    assert foundation is not None
    assert set(re.findall(r"`(\w+)`", foundation[1])) >= FOUNDATION
    assert (drawn.pop("foundation"), drawn.pop("`cli`")) == ("–", "everything")
    assert {name.strip("`"): set(re.findall(r"\w+", uses)) for name, uses in drawn.items()} == USES


def test_the_layering_has_no_circle() -> None:
    assert set(TopologicalSorter(USES).static_order()) == set(USES)


def test_packages_use_only_what_the_layering_allows() -> None:
    wrong = {
        module: extra
        for module in MODULES
        if (extra := used_packages(module) - allowed_packages(package_of(module)))
    }
    assert not wrong


def test_libraries_stay_where_they_belong() -> None:
    wrong = [
        (module, library)
        for module in MODULES
        for library in libraries(tree_of(module)) & set(HOMES)
        if package_of(module) not in HOMES[library]
    ]
    assert not wrong


def test_the_command_line_imports_heavy_libraries_late() -> None:
    for module in MODULES:
        if package_of(module) in ENTRANCES:
            top_level = [
                node for node in tree_of(module).body if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            assert not libraries(ast.Module(list(top_level), [])) & HEAVY, module


def test_no_two_public_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for module in MODULES
        for node in tree_of(module).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in names.items() if count > 1]


def test_functions_are_short() -> None:
    long = [
        (module, node.name)
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long


def test_every_module_says_what_it_is() -> None:
    assert not [module for module in MODULES if not ast.get_docstring(tree_of(module))]
