"""Kinds of models and data that a package of its own brings: registered by name, and loaded when a run is about them.

What trains, keeps and serves runs lies below such a package, and imports nothing of it. Whoever starts a process
registers the packages that there are (node/extensions.py); nothing of them is imported before a run asks for it, so a
plain install does without whatever they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.protocol.base.errors import LocalError


@dataclass(frozen=True, slots=True)
class Extension:
    """What a package brings. `Any` is of layers above this one, which say what they take it for."""

    kind: Callable[[], Any]  # of its models: a Kind (node/training/models/kind.py)
    corpus: Callable[[Any, Sequence[Path]], Any]  # of its data: from DataSpec and paths to Corpus (data/corpus.py)
    texts: Callable[[], Any]  # all its samples as texts, from which partitions are learned
    program: tuple[str, ...]  # of its workers, called with "--socket PATH"


_known: dict[str, Callable[[], Extension]] = {}


def register(names: Iterable[str], load: Callable[[], Extension]) -> None:
    """Models, or data, of these names are an extension's, which `load` imports."""
    _known.update(dict.fromkeys(names, load))


def find_extension(name: str) -> Extension | None:
    """The one that brings models or data of this name; None if they are no extension's."""
    load = _known.get(name)
    return load() if load is not None else None


def extension(name: str) -> Extension:
    """The same; LocalError if there is none."""
    if (found := find_extension(name)) is None:
        raise LocalError(f"nothing here knows models or data named {name}")
    return found
