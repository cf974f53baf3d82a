"""No name is a comprehension's variable and, beside it in the same function, a global.

Python 3.12.0 to 3.12.3, one of which Ubuntu 24.04 ships, mix them up: they inline comprehensions, and take the global
for the variable (CPython issue 118513).
"""

from __future__ import annotations

import symtable
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("node", "protocol", "dht")
INLINED = ("listcomp", "setcomp", "dictcomp")


def inlined(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """The comprehensions of a function, those within others too."""
    for child in table.get_children():
        if child.get_name().strip("<>") in INLINED:
            yield child
            yield from inlined(child)


def mixed_up(table: symtable.SymbolTable) -> Iterator[str]:
    """Each function with such a name."""
    if table.get_type() == "function":
        scopes = [table, *inlined(table)]
        used = {each.get_name() for scope in scopes for each in scope.get_symbols() if each.is_global()}
        bound = {each.get_name() for scope in scopes[1:] for each in scope.get_symbols() if each.is_local()}
        yield from (f"{table.get_name()}: {name}" for name in sorted(used & bound))
    for child in table.get_children():
        yield from mixed_up(child)


@pytest.mark.parametrize("package", PACKAGES)
def test_none_of_our_functions_has_one(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    tables = {file: symtable.symtable(file.read_text(), str(file), "exec") for file in files}
    assert files
    assert [f"{file}: {each}" for file, table in tables.items() for each in mixed_up(table)] == []


def test_one_would_be_found() -> None:
    source = "def rows(a):\n    b = [row for row in a]\n    return [row(each) for each in b]\n"
    assert list(mixed_up(symtable.symtable(source, "example", "exec"))) == ["rows: row"]
