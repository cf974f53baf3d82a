"""Commands about a node's settings: what they are and where they come from, and config.toml, in which they last."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.node.base.lines import printable
from shoal.node.client.cli.flags import Json
from shoal.node.client.cli.groups import WholeLines
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError

if TYPE_CHECKING:
    from shoal.node.api.answers import ChangedSettings
    from shoal.node.base.home import Home

EDITOR = "vi"  # if neither VISUAL nor EDITOR names one

app = typer.Typer(
    cls=WholeLines, no_args_is_help=True, rich_markup_mode=None, help="Show and change the node's lasting settings."
)
Key = Annotated[str, typer.Argument(help="The setting: a flag of `shoal node start` without its dashes.")]


@app.command()
def show(
    origin: Annotated[
        bool,
        typer.Option(
            "--origin",
            envvar="SHOAL_CONFIG_ORIGIN",
            help="Also where each comes from, and what the running node has if it differs.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show all settings, as a node that is started here and now would have them."""
    from shoal.node.api.present import show_json
    from shoal.node.base.home import find_home
    from shoal.node.base.settings import BY_KEY
    from shoal.node.base.toml import inline
    from shoal.node.client.cli.node import choose_settings

    home = find_home()
    rows: dict[str, dict[str, Any]] = {
        key: {"value": BY_KEY[key].write(choice.value), "origin": choice.origin}
        for key, choice in choose_settings(home).items()
    }
    for key, value in (_running(home) if origin or as_json else {}).items():
        if key in rows and rows[key]["value"] != value:
            rows[key]["running"] = value
    if as_json:
        show_json(rows)
        return
    lines = {key: f"{key} = {inline(row['value'])}" for key, row in rows.items()}
    width = max(map(len, lines.values()))
    for key, row in rows.items():
        print(printable(f"{lines[key]:{width}}  # {_origin(key, row)}" if origin else lines[key]))


@app.command("set")
def set_value(
    key: Key,
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE...", help="As for the flag; several if it may be repeated.")
    ],
) -> None:
    """Make a setting last. Limits and rules for pausing count at once, others from the next start of the node on."""
    from shoal.node.base import config_file
    from shoal.node.base.home import find_home
    from shoal.node.base.settings import find_setting
    from shoal.node.base.textfile import check_text
    from shoal.node.base.toml import inline

    home, setting = find_home(), find_setting(key)
    for value in values:
        check_text(value, f"the value of {key}")
    written = setting.of_texts(key, values)
    setting.read(key, written, home.root)
    config_file.change(home, lambda text: config_file.with_value(text, key, written))
    print(printable(f"{key} = {inline(written)} is in {home.config}"))
    _tell_the_node(home, {key: written})


@app.command()
def unset(key: Key) -> None:
    """Take a setting out of config.toml, so that its default counts: when, is as for `set`."""
    from shoal.node.base import config_file
    from shoal.node.base.home import find_home
    from shoal.node.base.settings import BY_KEY, find_setting

    home, had = find_home(), False

    def remove(text: str) -> str:
        nonlocal had
        fresh = config_file.without(text, key)
        had = fresh != text
        return fresh

    config_file.change(home, remove)
    if not had and key not in BY_KEY:
        find_setting(key)  # raises, with the nearest key
    print(printable(f"{key} {'is no longer' if had else 'was not'} in {home.config}"))
    if had and key in BY_KEY:
        _tell_the_node(home, {key: None})


@app.command()
def edit() -> None:
    """Open config.toml in your editor. What you write counts only if all of it is right, and is kept if not.

    When it counts, is as for `set`.
    """
    from shoal.node.base import config_file
    from shoal.node.base.home import find_home

    home = find_home().create()
    before = config_file.read_bytes(home.config)
    begin = before if before is not None else config_file.template(home.root).encode()
    draft = config_file.draft_of(home, before)
    for stale in config_file.drafts(home) - {draft}:
        words = "is about another config.toml than there is now, and does not count: take from it what you miss"
        print(printable(f"what you have written in {stale} {words}, and remove it"), file=sys.stderr)
    if config_file.read_bytes(draft) is None:
        config_file.replace(draft, begin)
    else:
        print(printable(f"going on with what you have written in {draft}"), file=sys.stderr)
    text = _right_text(draft, begin, home.config)
    if text is None:
        print(printable(f"{home.config} is as it was"))
        return
    with config_file.locked(home):
        if config_file.read_bytes(home.config) != before:
            raise LocalError(
                f"{home.config} has changed meanwhile, and stays so; what you have written is in {draft}",
                code="config-not-edited",
            )
        config_file.replace(home.config, text.encode())
    draft.unlink(missing_ok=True)
    later = "" if home.daemon_pid() is not None else "; it counts from the next start of the node on"
    print(printable(f"wrote {home.config}{later}"))
    if changes := config_file.changes(begin.decode("utf-8", "replace"), text):
        _tell_the_node(home, changes)


def _right_text(draft: Path, begin: bytes, config: Path) -> str | None:
    """What the user makes of the draft, once it is right; None if it stays as it began. LocalError if they give up."""
    from shoal.node.base import config_file

    while True:
        try:
            _run_editor(draft)
        finally:
            content = config_file.read_bytes(draft)
            if content == begin:
                draft.unlink()
        if content is None or content == begin:
            return None
        try:
            text = config_file.text_of(content, draft)
            config_file.check(text, draft)
            return text
        except ShoalError as error:
            print(f"shoal: {printable(str(error))}", file=sys.stderr)
            if not _edits_again():
                raise LocalError(
                    f"{config} is as it was; `shoal config edit` goes on with what you have written, in {draft}",
                    code="config-not-edited",
                ) from error


def _run_editor(path: Path) -> None:
    """LocalError unless the editor ends well."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or EDITOR
    try:
        code = subprocess.run([*shlex.split(command), str(path)]).returncode
    except (OSError, ValueError) as error:
        raise LocalError(
            f"cannot run the editor {command}: {error}; name another one in VISUAL or EDITOR", code="config-not-edited"
        ) from error
    if code != 0:
        raise LocalError(
            f"the editor {command} has ended with {code}; config.toml is as it was", code="config-not-edited"
        )


def _edits_again() -> bool:
    """Whether the user wants to go on; False if nobody can be asked."""
    if not sys.stdin.isatty():
        return False
    print("Edit again? [Y/n] ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line != "" and line.strip().lower() in ("", "y", "yes")


def _running(home: Home) -> dict[str, Any]:
    """The settings of the running node, by key; none if none runs or answers, which is said."""
    from shoal.node.api.client import Client, NoDaemon
    from shoal.node.api.liveness import ALIVE_WITHIN

    try:
        return dict(Client(home, ALIVE_WITHIN).settings()["settings"])
    except NoDaemon:
        return {}
    except ShoalError as error:
        print(printable(f"what the running node has is not known: {error}"), file=sys.stderr)
        return {}


def _origin(key: str, row: dict[str, Any]) -> str:
    from shoal.node.base.settings import BY_KEY, ENVIRONMENT
    from shoal.node.base.toml import inline

    words = str(row["origin"])
    words += f" ({BY_KEY[key].variable})" if words == ENVIRONMENT else ""
    return f"{words}; the running node has {inline(row['running'])}" if "running" in row else words


def _tell_the_node(home: Home, changes: Mapping[str, Any]) -> None:
    """Have the running node take what has changed in config.toml, and say what it has now, and what it has later."""
    changed = _told_the_node(home, changes)
    for line in _what_differs(changes, changed, os.environ, is_running=home.daemon_pid() is not None):
        print(line, file=sys.stderr)


def _told_the_node(home: Home, changes: Mapping[str, Any]) -> ChangedSettings | None:
    """What the running node makes of the changes; None if none runs or answers."""
    from shoal.node.api.client import Client, NoDaemon, NotAnswering, VersionMismatch
    from shoal.node.api.liveness import ALIVE_WITHIN

    try:
        return Client(home, ALIVE_WITHIN).change_settings(dict(changes))
    except (NoDaemon, NotAnswering, VersionMismatch, TransportError):
        return None


def _what_differs(
    keys: Collection[str], changed: ChangedSettings | None, environ: Mapping[str, str], *, is_running: bool
) -> Iterator[str]:
    """Why a node that is started here would not have the new values; which the running one has now, and which later.

    `changed` is None if that does not answer.
    """
    from shoal.node.base.settings import BY_KEY

    for key in keys:
        if environ.get(variable := BY_KEY[key].variable):
            yield f"but {variable} is set in this environment, and beats config.toml"
    if now := [key for key in keys if changed is not None and key in changed["applied"]]:
        yield f"the running node has the new {', '.join(now)} now"
    later = [key for key in keys if changed is None or key in changed["at_next_start"]]
    if later and is_running:
        yield f"the running node has the new {', '.join(later)} from its next start on: `shoal restart`"
