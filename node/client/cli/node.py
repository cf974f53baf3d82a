"""Commands that start and stop the node of this SHOAL_HOME, and `ensure_node`, by which other commands start one."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.node.base import settings
from shoal.node.base.lines import printable
from shoal.node.base.options import NodeSettings, UsageError
from shoal.node.base.settings import SETTINGS, SWITCH, Choice, Setting
from shoal.node.client.cli.flags import this_node
from shoal.node.client.cli.groups import WholeLines
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    from shoal.node.api.client import Client
    from shoal.node.base.home import Home

app = typer.Typer(
    cls=WholeLines, no_args_is_help=True, rich_markup_mode=None, help="Start and stop this machine's node."
)


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """A command that has a flag for each setting in the place of its parameter `**flags`."""
    own = inspect.signature(function, eval_str=True).parameters.values()
    named = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
    usual = settings.written(NodeSettings(Path("/")))
    flags = [_parameter(each, usual[each.key]) for each in SETTINGS]
    function.__signature__ = inspect.Signature([*named, *flags])  # type: ignore[attr-defined]
    return function


def _parameter(setting: Setting, usual: settings.Written) -> inspect.Parameter:
    """The flag of a setting; `usual` is its default, as it is written."""
    hint: Any = bool if setting.kind is SWITCH else list[str] if setting.kind.is_many else str
    default = usual if setting.kind is SWITCH else None if usual in ([], settings.NONE) else str(usual)
    option = typer.Option(
        default,
        f"{setting.flag}/{setting.opposite}" if setting.kind is SWITCH else setting.flag,
        envvar=setting.variable,
        metavar=setting.metavar or setting.kind.metavar or None,
        help=setting.help,
        show_default=setting.usually or not isinstance(usual, bool),
    )
    name = setting.key.replace("-", "_")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=hint)


@app.command()
@with_settings
def start(
    context: typer.Context,
    foreground: Annotated[
        bool, typer.Option("--foreground/--background", envvar="SHOAL_FOREGROUND", help="Stay in this terminal.")
    ] = False,
    **flags: Any,
) -> None:
    """Start the node, in the background unless told otherwise; flags count for this start only, see `shoal config`."""
    from shoal.node.api import present
    from shoal.node.base.home import find_home
    from shoal.node.client import launch

    home = find_home()
    given = _given(context, home)
    chosen = choose_settings(home, given)
    options = settings_of(home, chosen)
    if foreground:
        launch.run_here(options, chosen)
        return
    if given and (pid := home.daemon_pid()) is not None:
        sets = " && ".join(how_to_set(given))
        raise LocalError(
            f"a node (pid {pid}) already runs in {home.root}; to change its settings: {sets} && shoal restart",
            code="home-taken",
        )
    words = [word for key, value in given.items() for word in settings.BY_KEY[key].words(value)]
    for line in (*launch.start_in_background(options, words), f"page {this_node().page(present.is_terminal())}"):
        print(printable(line))
    for line in how_to_keep(chosen, choose_settings(home)):
        print(printable(line))


def _given(context: typer.Context, home: Home) -> dict[str, Any]:
    """The values of the flags on the command line, by key; the environment's are read elsewhere."""
    found = {}
    for each in SETTINGS:
        name = each.key.replace("-", "_")
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[name]
            texts = list(value) if each.kind.is_many else [str(value)]
            found[each.key] = each.read_texts(each.flag, texts, home.root)
    return found


def choose_settings(home: Home, given: Mapping[str, Any] | None = None) -> dict[str, Choice]:
    """Each setting's value and origin, by key: from `given`, the environment, config.toml, or its default.

    UsageError, about the variable or the line, if one is wrong.
    """
    from shoal.node.base import config_file

    return settings.choose(
        home.root,
        (settings.FILE, config_file.load(home.config)),
        (settings.ENVIRONMENT, settings.of_environment(os.environ, home.root)),
        (settings.FLAG, given or {}),
    )


def settings_of(home: Home, chosen: Mapping[str, Choice]) -> NodeSettings:
    """The settings to start a node with; UsageError if its device is not here and no flag says so."""
    from shoal.node.base.devices import check_is_here

    device = chosen["device"]
    if device.origin in (settings.FILE, settings.ENVIRONMENT):
        try:
            check_is_here([device.value])
        except UsageError as error:
            raise UsageError(f"{device.origin}: {error}", code=error.code) from error
    return settings.node_settings(home.root, {key: choice.value for key, choice in chosen.items()})


def how_to_keep(chosen: Mapping[str, Choice], usual: Mapping[str, Choice]) -> list[str]:
    """Lines that say which values count for this start only, as flags gave them, and how to keep them."""
    passing = [settings.BY_KEY[key] for key, choice in chosen.items() if choice.value != usual[key].value]
    if not passing:
        return []
    lines = [f"  {line}" for line in how_to_set({each.key: chosen[each.key].value for each in passing})]
    return [f"for this start only: {', '.join(each.flag for each in passing)}; to keep that:", *lines]


def how_to_set(values: Mapping[str, Any]) -> list[str]:
    """The commands that write values of settings, by key, to config.toml."""
    return [f"shoal config set {shlex.join([key, *settings.BY_KEY[key].texts(each)])}" for key, each in values.items()]


class AskedAlready(KeyboardInterrupt):
    """Ctrl-C, once the node was asked for something with which it goes on."""


@contextmanager
def ensure_node(keep: bool = True) -> Iterator[Client]:
    """A client of this home's node, which is started if none runs.

    A node that was started here is stopped again after an error, except AskedAlready, or if `keep` is false.
    """
    from shoal.node.base.home import find_home
    from shoal.node.client import launch

    home = find_home()
    if home.daemon_pid() is not None:
        yield this_node()
        return
    launch.start_in_background(settings_of(home, choose_settings(home)))
    client = this_node()
    if keep:
        print(f"started a node in the background (pid {client.pid}); its log is {home.daemon_log}\n", file=sys.stderr)
    try:
        yield client
    except AskedAlready:
        raise
    except BaseException:  # also Ctrl-C at a question: a node without a run was not asked for
        launch.stop(home, lambda _: None)
        raise
    if not keep:
        launch.stop(home, lambda _: None)


@app.command()
def stop(
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            envvar="SHOAL_STOP_FORCE",
            help="Kill it if it has not ended in some seconds, even if it is still saving its runs.",
        ),
    ] = False,
) -> None:
    """Stop the node; its runs go on with the others, or when it is back. One that hangs is killed in the end."""
    from shoal.node.base.home import find_home
    from shoal.node.client import launch

    print(launch.stop(find_home(), lambda line: print(line, file=sys.stderr, flush=True), force))
