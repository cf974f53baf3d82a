"""A registry of extensions: packages that add kinds of models and data, loaded when a run needs them.

The code that trains, keeps and serves runs is in layers below the extensions and imports nothing of them. A process
registers them by name as it starts (node/extensions.py), and imports one only for a run that names it. So a plain
install does not need the libraries of the extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.protocol.base.errors import LocalError


@dataclass(frozen=True, slots=True)
class Extension:
    """What an extension provides. `Any` stands for types of layers above this one."""

    kind: Callable[[], Any]  # gives the Kind of its models (node/training/models/kind.py)
    corpus: Callable[[Any, Sequence[Path]], Any]  # makes the Corpus (data/corpus.py) from a DataSpec and paths
    texts: Callable[[], Any]  # gives all its samples as texts, from which partitions are learned
    program: tuple[str, ...]  # command line of its worker, to which "--socket PATH" is added


_known: dict[str, Callable[[], Extension]] = {}


def register(names: Iterable[str], load: Callable[[], Extension]) -> None:
    """Register an extension for models or data of these names; `load` imports it."""
    _known.update(dict.fromkeys(names, load))


def find_extension(name: str) -> Extension | None:
    """The extension for models or data of this name; None if no extension has registered it."""
    load = _known.get(name)
    return load() if load is not None else None


def extension(name: str) -> Extension:
    """The extension for models or data of this name; LocalError if there is none."""
    if (found := find_extension(name)) is None:
        raise LocalError(
            f"nothing here knows models or data named {name}: install the package that brings them",
            code="package-missing",
        )
    return found
