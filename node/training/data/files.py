"""Finds the data files below the paths that a person names, and records what a dataset leaves out.

A path means the file, or all files below the folder that are not hidden. Links are followed. A folder that can be
reached in several ways counts once, by its own path rather than a link's; so links in circles do no harm. An unreadable
file or a dangling link is an error: a run would be trained for good on less data than its founder meant. For the same
reason everything that is left out or renamed is reported to the person (`LeftOut`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shoal.node.base.textfile import shown, unreadable
from shoal.protocol.base.errors import LocalError

NAMED = 20  # places that are listed for each reason, and domains; the others are only counted
MAX_SHOWN = 100  # characters of a domain


@dataclass(slots=True)
class Places:
    """Places in the data, such as files or rows, that have something in common, grouped by reason."""

    by_reason: dict[str, list[str]] = field(default_factory=dict)  # the first NAMED of each
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, place: str) -> None:
        """Records one more place."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.by_reason.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(place)

    @property
    def total(self) -> int:
        """How many places were recorded, over all reasons."""
        return sum(self.counts.values())

    def words(self, one: str, many: str) -> Iterator[str]:
        """A phrase for each reason: how many places, why, and which."""
        for reason, named in self.by_reason.items():
            count = self.counts[reason]
            more = f" and {count - len(named):,} more" if count > len(named) else ""
            yield f"{count:,} {one if count == 1 else many} {reason}: {', '.join(sorted(named))}{more}"


@dataclass(slots=True)
class Domains:
    """Domains by their names in the dataset, with the names that the data use for them."""

    called: dict[str, set[str]] = field(default_factory=dict)

    def add(self, name: str, called: str) -> None:
        """Records that the data call the domain `name` `called`."""
        self.called.setdefault(name, set()).add(called)

    def words(self) -> Iterator[str]:
        """A phrase for each domain that the data call otherwise, or by several names that have become one."""
        altered = {name: called for name, called in self.called.items() if called != {name}}
        for name in sorted(altered)[:NAMED]:
            first = [repr(each[:MAX_SHOWN]) for each in sorted(altered[name])[:NAMED]]
            more = f" and {len(altered[name]) - NAMED:,} more" if len(altered[name]) > NAMED else ""
            yield f"the domain {name} is what the data call {', '.join(first)}{more}"
        if len(altered) > NAMED:
            yield f"{len(altered) - NAMED:,} more domains have other names than in the data"


@dataclass(slots=True)
class LeftOut:
    """What one dataset leaves out or renames. Data that are wrong, and not just unsuitable, are errors instead."""

    files: Places = field(default_factory=Places)  # that hold no text
    rows: Places = field(default_factory=Places)  # of tables, without text
    hidden: Places = field(default_factory=Places)  # files and folders
    whole: Places = field(default_factory=Places)  # files with a table's suffix that were read as one text
    nowhere: Places = field(default_factory=Places)  # rows that name no domain
    domains: Domains = field(default_factory=Domains)

    def words(self) -> list[str]:
        """Phrases that report all of it."""
        return [
            *self.files.words("file was skipped, because it", "files were skipped, because each"),
            *self.rows.words("row was skipped, because it", "rows were skipped, because each"),
            *self.hidden.words("hidden file or folder", "hidden files and folders"),
            *self.whole.words("file", "files"),
            *self.nowhere.words("row is in the domain other, because it", "rows are in the domain other, because each"),
            *self.domains.words(),
        ]


KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class DataFile(NamedTuple):
    """A file: its path relative to the folder that the person named, with forward slashes, and its full path."""

    name: str
    path: Path
    is_named: bool = False  # whether the person named this very file and not a folder


def find(paths: Sequence[Path], left_out: LeftOut | None = None) -> list[DataFile]:
    """All files among `paths` and below the folders among them; LocalError if anything cannot be read."""
    noted = left_out if left_out is not None else LeftOut()
    return [each for path in paths for each in walk(path, noted)]


def walk(path: Path, left_out: LeftOut) -> Iterator[DataFile]:
    """The file at `path`, or all files below the folder, in no particular order."""
    status = _status(path)
    if stat.S_ISREG(status.st_mode):
        yield DataFile(path.name, path, True)
    elif stat.S_ISDIR(status.st_mode):
        yield from _below(path, status, left_out)
    else:
        raise LocalError(
            f"{shown(path)} is {kind_of(status)}, neither a file nor a folder: name one that is", code="unreadable"
        )


def kind_of(status: os.stat_result) -> str:
    """The kind of something that is neither a file nor a folder, in words."""
    return KINDS.get(stat.S_IFMT(status.st_mode), "something else")


def _below(root: Path, status: os.stat_result, left_out: LeftOut) -> Iterator[DataFile]:
    above = {_identity(_status(each)) for each in root.resolve().parents}
    seen: set[tuple[int, int]] = set()
    folders, links = [("", status)], list[tuple[str, os.stat_result]]()
    while folders or links:
        if folders:
            name, status = folders.pop()
        else:
            links.sort(key=lambda each: each[0], reverse=True)  # links come last: a folder keeps its own path
            name, status = links.pop()
            if _identity(status) in above:
                left_out.files.add("is a link to a folder above the data", shown(root / name))
                continue
        if _identity(status) in seen:
            continue
        seen.add(_identity(status))
        for entry in _entries(root / name):
            below = f"{name}/{entry.name}" if name else entry.name
            if entry.name.startswith("."):
                left_out.hidden.add("left out", shown(root / below))
                continue
            status = _status(Path(entry.path))
            if stat.S_ISDIR(status.st_mode):
                (links if entry.is_symlink() else folders).append((below, status))
            elif stat.S_ISREG(status.st_mode):
                yield DataFile(below, root / below)
            else:
                left_out.files.add(f"is {kind_of(status)}", shown(root / below))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise LocalError(unreadable(f"the folder {shown(folder)}", error), code="unreadable") from error


def _status(path: Path) -> os.stat_result:
    """The status of what a path leads to, links followed; LocalError if that fails."""
    try:
        return path.stat()
    except FileNotFoundError as error:
        if path.is_symlink():
            what = f"{shown(path)} is a link to {shown(os.readlink(path))}, which is not there"
            raise LocalError(f"{what}: bring that back, or remove the link", code="data-missing") from error
        raise LocalError(
            f"{shown(path)} is neither a file nor a folder: nothing is there, or it has just gone", code="data-missing"
        ) from error
    except OSError as error:
        raise LocalError(unreadable(shown(path), error), code="unreadable") from error


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
