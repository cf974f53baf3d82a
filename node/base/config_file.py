"""config.toml, the owner's settings of a node: how it is read, checked, and changed by one line.

A flat table, `KEY = value`; node/base/settings.py knows the keys. The text is the owner's: a change replaces the lines
of one key and nothing else, comments stay, and the result is parsed again before it counts. It takes the place of the
old text as a whole, or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.node.base.atomic import replace_file
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings, UsageError
from shoal.node.base.refusals import reason
from shoal.node.base.settings import BY_KEY, SETTINGS, Written, find_setting, written
from shoal.node.base.textfile import decoded, shown
from shoal.node.base.toml import ASSIGNMENT, inline, line_of, parts_of
from shoal.protocol.base.errors import LocalError

MAX_CONFIG = 64 << 10  # bytes
STRING_OR_COMMENT = re.compile(r""""(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\r\n]*""")
HEAD = """\
# The settings of this node; a line counts once its # is removed.
# `shoal config show --origin` prints all settings and where each comes from.
"""


# -- the file -----------------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes | None:
    """The file as it is; None if there is none, LocalError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        code = "home-unusable" if error.errno == errno.ENOTDIR else "unreadable"
        raise LocalError(f"cannot read {shown(path)}: {reason(error)}", code=code) from error


def load(path: Path) -> dict[str, Any]:
    """The values in a file by key, as `NodeSettings` has them; none if there is no file. UsageError: see `check`."""
    content = read_bytes(path)
    return check(text_of(content, path), path) if content is not None else {}


def text_of(content: bytes, path: Path) -> str:
    """The text in a file; UsageError if it is none, or too large."""
    if len(content) > MAX_CONFIG:
        raise UsageError(f"{shown(path)} is larger than {MAX_CONFIG >> 10} KiB", code="config-broken")
    try:
        return decoded(content, shown(path))
    except LocalError as error:
        raise UsageError(str(error), code="config-broken") from error


def replace(path: Path, content: bytes) -> None:
    """Write the file: on return it survives a crash; until then a crash leaves the old one.

    It keeps its mode; a new one is for its owner alone. LocalError where `replace_file` has an OSError.
    """
    try:
        replace_file(Path(os.path.realpath(path)), [content], mode=0o600)  # a link stays one
    except OSError as error:
        raise LocalError(f"cannot write {shown(path)}: {reason(error)}", code="unwritable") from error


def change(home: Home, edit: Callable[[str], str]) -> None:
    """Replace the text of a node's config.toml by `edit` of it, while no other process does the same.

    UsageError if the present text is not TOML, or the new one would be too large.
    """
    with locked(home):
        text = text_of(read_bytes(home.config) or b"", home.config)
        parse(text, home.config)
        if (fresh := edit(text).encode()) == text.encode():
            return
        if len(fresh) > MAX_CONFIG:
            raise UsageError(
                f"{shown(home.config)} would be larger than {MAX_CONFIG >> 10} KiB; it is as it was", code="too-large"
            )
        replace(home.config, fresh)


def draft_of(home: Home, content: bytes | None) -> Path:
    """Where `shoal config edit` keeps what is made of a config.toml with this content, until it counts."""
    return home.root / f"config.draft-{hashlib.sha256(content or b'').hexdigest()[:8]}.toml"


def drafts(home: Home) -> set[Path]:
    """All such files that are there."""
    return set(home.root.glob("config.draft-*.toml"))


@contextmanager
def locked(home: Home) -> Iterator[None]:
    """Keep other commands from changing config.toml meanwhile."""
    home.create()
    folder = os.open(home.root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError as error:
            raise LocalError(f"cannot lock {shown(home.root)}: {reason(error)}", code="home-unusable") from error
        yield
    finally:
        os.close(folder)


# -- its text -----------------------------------------------------------------------------------------------


def parse(text: str, path: Path) -> dict[str, Any]:
    """The written values by key; UsageError with the line, and what is expected there, if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{shown(path)} is not TOML: {error}{_expected(text, str(error))}", code="config-broken"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{shown(path)} is not TOML: nested too deeply, or a number too long", code="config-broken"
        ) from error


def check(text: str, path: Path) -> dict[str, Any]:
    """The values by key, as `NodeSettings` has them; UsageError with file, line, key and what is expected."""
    values = {}
    for key, item in parse(text, path).items():
        try:
            values[key] = find_setting(key).read(key, item, path.parent)
        except UsageError as error:
            raise UsageError(
                f"{shown(path)}, line {line_of(text, (key,)) or 1}: {error}", code="config-broken"
            ) from error
    return values


def template(root: Path) -> str:
    """A text to begin with: all settings with their defaults, as comments."""
    defaults = written(NodeSettings(root))
    return HEAD + "".join(f"\n# {each.help}\n# {each.key} = {inline(defaults[each.key])}\n" for each in SETTINGS)


def with_value(text: str, key: str, value: Written) -> str:
    """The text with another value of a key; a key that it lacks is added at its end. UsageError if that is impossible.

    Comments stay, also those within an old value of several lines. A value that is the same stays as it is written.
    """

    def fresh(piece: str, newline: str) -> str:
        before = piece[: _begin_of_value(piece)]
        comments = _comments(piece)
        if piece.count("\n") <= 1 and comments:
            start, words = comments[0]
            kept = piece[:start]
            return f"{before}{inline(value)}{kept[len(kept.rstrip()) :]}{words}{newline}"
        return "".join(f"{words}{newline}" for _, words in comments) + f"{before}{inline(value)}{newline}"

    table = tomllib.loads(text)
    if key in table and _is_same(table[key], value):
        return text
    if key in table:
        return _edited(text, key, {**table, key: value}, fresh)
    newline = _newline(text)
    added = f"{text}{newline if text and not text.endswith(chr(10)) else ''}{key} = {inline(value)}{newline}"
    if not _reads_as({**table, key: value}, added):  # it has tables
        raise _cannot_edit(key)
    return added


def changes(before: str, after: str) -> dict[str, Written | None]:
    """What the settings that differ between two texts are in the second one, which is right; None: not there.

    A first one that is no TOML tells nothing, so all settings of the second one differ.
    """
    try:
        old = tomllib.loads(before)
    except (ValueError, RecursionError):
        old = {}
    new = tomllib.loads(after)
    changed = {key: item for key, item in new.items() if key not in old or not _is_same(old[key], item)}
    return changed | {key: None for key in old if key in BY_KEY and key not in new}


def without(text: str, key: str) -> str:
    """The text without a key; comments on its lines get lines of their own. UsageError if that is impossible."""
    table = tomllib.loads(text)
    rest = {name: value for name, value in table.items() if name != key}

    def fresh(piece: str, newline: str) -> str:
        return "".join(f"{words}{newline}" for _, words in _comments(piece))

    return _edited(text, key, rest, fresh) if key in table else text


def _edited(text: str, key: str, wanted: Mapping[str, Any], fresh: Callable[[str, str], str]) -> str:
    """The text with `fresh` in place of the lines that set `key`, which must read as `wanted` then."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    for start, end in _places(lines, key):
        made = "".join([*lines[:start], fresh("".join(lines[start:end]), _newline(text)), *lines[end:]])
        if _reads_as(wanted, made):
            return made
    raise _cannot_edit(key)


def _places(lines: list[str], key: str) -> Iterator[tuple[int, int]]:
    """(first line, line after the last) of what looks as if it sets the key: another text may contain such a line."""
    for start, line in enumerate(lines):
        found = ASSIGNMENT.match(line)
        if found is None or parts_of(found[1]) != [key]:
            continue
        for end in range(start + 1, len(lines) + 1):
            try:
                tomllib.loads("".join(lines[start:end]))
            except tomllib.TOMLDecodeError:
                continue
            yield start, end
            break


def _begin_of_value(piece: str) -> int:
    found = re.match(ASSIGNMENT.pattern + r"[ \t]*", piece)
    return found.end() if found is not None else 0


def _comments(piece: str) -> list[tuple[int, str]]:
    """(start, words) of the comments in the lines of one value."""
    return [(each.start(), each[0]) for each in STRING_OR_COMMENT.finditer(piece) if each[0].startswith("#")]


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other  # true is no 1


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _reads_as(wanted: Mapping[str, Any], text: str) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _cannot_edit(key: str) -> UsageError:
    return UsageError(f"'{key}' cannot be changed by itself as config.toml is written: use `shoal config edit`")


def _expected(text: str, error: str) -> str:
    """What should be in the line that an error of the parser names, if that is the line of a setting."""
    number = re.search(r"at line (\d+)", error)
    lines = text.split("\n")
    line = lines[int(number[1]) - 1] if number is not None and int(number[1]) <= len(lines) else lines[-1]
    found = ASSIGNMENT.match(line)
    setting = BY_KEY.get(found[1].strip()) if found is not None else None
    return f": '{setting.key}' takes {setting.kind.expected}" if setting is not None else ""
