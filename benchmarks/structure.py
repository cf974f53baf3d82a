"""Figures of how code is divided into files, for comparison with other codebases.

    python benchmarks/structure.py                                   this one
    python benchmarks/structure.py h11=../h11/h11 httpcore=../httpcore/httpcore

Each argument is a package and the folder that it lies in. Lines include comments; a function's include its docstring.
Imports are those between files of the package, wherever in a file they stand. `chain` is the longest chain of imports,
counted in files (a circle of files counts as one); `one importer` are files that exactly one other file imports.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = {f"shoal.{name}": ROOT / name for name in ("protocol", "dht", "node")}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    package: str
    files: int
    lines: int
    module: str  # median / max
    function: str  # median / 90 of 100 / max
    folder: int  # files in the largest one
    chain: int
    one_importer: int


def modules_of(package: str, folder: Path) -> dict[str, Path]:
    """Each module's dotted name and file."""
    files = sorted(folder.rglob("*.py"))
    return {".".join((package, *_parts(file.relative_to(folder)))): file for file in files}


def _parts(path: Path) -> tuple[str, ...]:
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(name: str, file: Path, tree: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules that one imports, each as the deepest that a dotted name leads to."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            start = ".".join(filter(None, (base, node.module)))
            names = [f"{start}.{alias.name}" for alias in node.names]
        for each in names:
            parts = each.split(".")
            prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            found = next((prefix for prefix in prefixes if prefix in modules), name)
            if found != name:
                yield found


def deepest(graph: Mapping[str, set[str]]) -> int:
    """The longest chain of imports, in files; a circle counts as one."""
    group = {name: min(circle) for circle in circles(graph) for name in circle}
    groups: dict[str, set[str]] = {group[name]: set() for name in graph}
    for name, targets in graph.items():
        groups[group[name]] |= {group[target] for target in targets} - {group[name]}
    depth: dict[str, int] = {}
    for name in TopologicalSorter(groups).static_order():
        depth[name] = 1 + max((depth[target] for target in groups[name]), default=0)
    return max(depth.values())


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The groups of files that import each other, directly or not."""
    reached = {name: _reached(graph, name) for name in graph}
    return [{other for other in there if name in reached[other]} | {name} for name, there in reached.items()]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen, pending = set[str](), [start]
    while pending:
        for target in graph[pending.pop()] - seen:
            seen.add(target)
            pending.append(target)
    return seen


def measure(package: str, modules: Mapping[str, Path]) -> Row:
    """The figures of one package."""
    texts = {name: file.read_text(encoding="utf-8") for name, file in modules.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    graph = {name: set(imported(name, modules[name], tree, modules)) for name, tree in trees.items()}
    lengths = sorted(text.count("\n") for text in texts.values())
    functions = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    importers = Counter(target for targets in graph.values() for target in targets)
    return Row(
        package,
        len(modules),
        sum(lengths),
        f"{statistics.median(lengths):.0f} / {lengths[-1]}",
        f"{statistics.median(functions):.0f} / {functions[9 * len(functions) // 10]} / {functions[-1]}",
        max(Counter(file.parent for file in modules.values()).values()),
        deepest(graph),
        sum(1 for name in modules if importers[name] == 1 and modules[name].name != "__init__.py"),
    )


def main() -> None:
    """Print the table."""
    asked = dict(argument.split("=", 1) for argument in sys.argv[1:])
    ours = {name: path for package, folder in OURS.items() for name, path in modules_of(package, folder).items()}
    rows = [measure(package, modules_of(package, folder)) for package, folder in OURS.items()]
    rows = [*rows, measure("shoal, all of it", ours)]
    rows += [measure(package, modules_of(package, Path(folder))) for package, folder in asked.items()]
    print("| | files | lines | module median / max | function median / p90 / max | folder | chain | one importer |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        figures = (row.files, row.lines, row.module, row.function, row.folder, row.chain, row.one_importer)
        print(f"| {row.package} | {' | '.join(map(str, figures))} |")


if __name__ == "__main__":
    main()
