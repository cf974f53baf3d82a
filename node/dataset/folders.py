"""Which files a person means by the paths that they name: each file, and all below each folder that are not hidden.

Links are followed. A folder that several ways lead to counts once, by its own path rather than a link's; so links that
lead in circles do no harm. What cannot be read, or is a link to nothing, is an error: data that are silently less than
were meant would be a run's for good.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.node.dataset.left_out import LeftOut
from shoal.node.textfile import shown, unreadable
from shoal.protocol.errors import LocalError

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class Found(NamedTuple):
    """A file: its path relative to the folder that was named, with forward slashes, and where it is."""

    name: str
    path: Path
    is_named: bool = False  # by itself: then it is meant


def find(paths: Sequence[Path], left_out: LeftOut | None = None) -> list[Found]:
    """Each file among `paths`, and below the folders among them; LocalError if any cannot be read."""
    noted = left_out if left_out is not None else LeftOut()
    return [each for path in paths for each in walk(path, noted)]


def walk(path: Path, left_out: LeftOut) -> Iterator[Found]:
    """The one file, or all below the folder, in no order."""
    status = _status(path)
    if stat.S_ISREG(status.st_mode):
        yield Found(path.name, path, True)
    elif stat.S_ISDIR(status.st_mode):
        yield from _below(path, status, left_out)
    else:
        raise LocalError(f"{shown(path)} is {kind_of(status)}, neither a file nor a folder: name one that is")


def kind_of(status: os.stat_result) -> str:
    """What neither file nor folder is."""
    return KINDS.get(stat.S_IFMT(status.st_mode), "something else")


def _below(root: Path, status: os.stat_result, left_out: LeftOut) -> Iterator[Found]:
    above = {_identity(_status(each)) for each in root.resolve().parents}
    seen: set[tuple[int, int]] = set()
    folders, links = [("", status)], list[tuple[str, os.stat_result]]()
    while folders or links:
        if folders:
            name, status = folders.pop()
        else:
            links.sort(key=lambda each: each[0], reverse=True)  # that those lead to which lies nowhere else
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
                yield Found(below, root / below)
            else:
                left_out.files.add(f"is {kind_of(status)}", shown(root / below))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise LocalError(unreadable(f"the folder {shown(folder)}", error)) from error


def _status(path: Path) -> os.stat_result:
    """Of what a path leads to."""
    try:
        return path.stat()
    except FileNotFoundError as error:
        if path.is_symlink():
            what = f"{shown(path)} is a link to {shown(os.readlink(path))}, which is not there"
            raise LocalError(f"{what}: bring that back, or remove the link") from error
        raise LocalError(
            f"{shown(path)} is neither a file nor a folder: nothing is there, or it has just gone"
        ) from error
    except OSError as error:
        raise LocalError(unreadable(shown(path), error)) from error


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
