"""The settings of a node as one table: of each its key, how it is written, and what it is for.

Everything else about settings follows from the table. A setting is the flag `--KEY` of `shoal node start`, the variable
`SHOAL_KEY` of the environment, and the line `KEY = value` of config.toml in the node's home. The first of these that is
given counts, in this order, or else the default of `NodeSettings`, which checks all values; docs/configuration.md has
the rules for people.

A value has two forms: as it is *written* in config.toml (a number, true or false, a text, or a list of texts), and as
it is *read*, for `NodeSettings`. A switch whose key begins with `no-` turns a field off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.node.base.options import NodeSettings, UsageError, names_a_run
from shoal.node.base.quantities import parse_rate, parse_volume, write_rate, write_volume
from shoal.node.base.schedule import Schedule, parse_schedule
from shoal.node.base.step_options import TrainerOptions

Written = bool | int | float | str | list[str]
NONE = "none"  # written for: no limit, no manifest
MAX_SHOWN = 80  # characters of a wrong value or key that a message repeats

DEFAULT, FILE, ENVIRONMENT, FLAG = "default", "config.toml", "environment", "flag"
"""Where a value may come from."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the values of some settings are written and read."""

    expected: str  # after "is not"
    types: tuple[type, ...]  # that a written value has in TOML; of many: each
    metavar: str
    of_text: Callable[[str], Any] = str  # from a flag or a variable to what is written
    read: Callable[[str, Any, Path], Any] = lambda name, written, folder: written  # paths are relative to `folder`
    write: Callable[[Any], Any] = lambda value: value
    is_many: bool = False
    between: str | None = None  # what separates values in a variable; None: white space


def _switched(text: str) -> bool:
    word = text.strip().lower()
    if word in ("1", "true", "t", "yes", "y", "on"):
        return True
    if word in ("0", "false", "f", "no", "n", "off"):
        return False
    raise ValueError(text)


def _absolute(text: str) -> str:
    return str(Path(text).absolute())


def _read_path(name: str, written: str, folder: Path) -> Path:
    try:
        return folder / Path(written).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{name} {written}: nobody here is called so; give the whole path", code="bad-value"
        ) from error


def _read_run(name: str, written: str, folder: Path) -> str:
    return written if names_a_run(written) else str(_read_path(name, written, folder))


def _read_schedule(name: str, written: str, folder: Path) -> Schedule:
    try:
        return parse_schedule(written)
    except ValueError as error:
        raise UsageError(f"{name}: {error}", code="bad-value") from error


def _optional(kind: Kind) -> Kind:
    """The same, where "none" means None."""
    return replace(
        kind,
        of_text=lambda text: NONE if text == NONE else kind.of_text(text),
        read=lambda name, written, folder: None if written == NONE else kind.read(name, written, folder),
        write=lambda value: NONE if value is None else kind.write(value),
    )


WHOLE = Kind("a whole number", (int,), "NUMBER", of_text=int)
NUMBER = Kind("a number", (int, float), "NUMBER", of_text=float, read=lambda name, written, folder: float(written))
SWITCH = Kind("true or false", (bool,), "", of_text=_switched)
TEXT = Kind("a text in quotes", (str,), "TEXT")
TEXTS = Kind('a list of texts, as ["one", "two"]', (str,), "TEXT", is_many=True)
RATE = _optional(
    Kind(
        'a rate in quotes, as "20Mbit", "2.5MB/s" or "none"',
        (str,),
        "RATE",
        read=lambda name, written, folder: parse_rate(name, written),
        write=write_rate,
    )
)
VOLUME = _optional(
    Kind(
        'a volume in quotes, as "20GB", "500MB" or "none"',
        (str,),
        "VOLUME",
        read=lambda name, written, folder: parse_volume(name, written),
        write=write_volume,
    )
)
HOURS = _optional(Kind('hours in quotes, as "22:00-07:00" or "none"', (str,), "HOURS", read=_read_schedule, write=str))
PATH = _optional(Kind('a path in quotes, or "none"', (str,), "PATH", of_text=_absolute, read=_read_path, write=str))
PATHS = replace(
    PATH,
    expected='a list of paths, as ["/home/me/notes"]',
    of_text=_absolute,
    read=_read_path,
    write=str,
    is_many=True,
    between=os.pathsep,
)
FOLDERS = replace(PATHS, metavar="FOLDER", read=lambda *given: str(_read_path(*given)))
RUNS = replace(
    TEXTS,
    expected='a list of runs, as ["shoal2..."]',
    metavar="RUN",
    of_text=lambda text: text if names_a_run(text) else _absolute(text),
    read=_read_run,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table."""

    key: str
    kind: Kind
    help: str
    field: str = ""  # of `NodeSettings`, or of its trainer after a dot; "": the key's
    metavar: str = ""  # "": the kind's
    usually: str = ""  # the default in words, where it is another on each machine

    @property
    def flag(self) -> str:
        """The flag of `shoal node start`."""
        return f"--{self.key}"

    @property
    def opposite(self) -> str:
        """Of a switch: the flag that turns it off."""
        return f"--{self.key.removeprefix('no-')}" if self.turns_off else f"--no-{self.key}"

    @property
    def variable(self) -> str:
        """The variable of the environment."""
        return f"SHOAL_{self.key.upper().replace('-', '_')}"

    @property
    def turns_off(self) -> bool:
        """Whether it is a switch that turns its field off."""
        return self.kind is SWITCH and self.key.startswith("no-")

    @property
    def place(self) -> tuple[str, str]:
        """("" or "trainer", the field's name)."""
        owner, _, name = (self.field or self.key.removeprefix("no-").replace("-", "_")).rpartition(".")
        return owner, name

    def of_texts(self, name: str, texts: Sequence[str]) -> Written:
        """Texts of the command line or the environment as they are written in config.toml; UsageError, about `name`."""
        if not self.kind.is_many and len(texts) != 1:
            raise UsageError(f"{name} takes one value", code="bad-value")
        try:
            items = [self.kind.of_text(text) for text in texts]
        except ValueError as error:
            raise UsageError(
                f"{name} {' '.join(texts)[:MAX_SHOWN]} is not {self.kind.expected}", code="bad-value"
            ) from error
        except UsageError as error:
            raise UsageError(self._named(name, error), code=error.code) from error
        return items if self.kind.is_many else items[0]

    def read(self, name: str, written: object, folder: Path) -> Any:
        """A written value as `NodeSettings` has it; UsageError, about `name`, if it is not one."""
        items = written if isinstance(written, list) else [written]
        if isinstance(written, list) != self.kind.is_many or not all(type(each) in self.kind.types for each in items):
            raise UsageError(f"{name} = {_shown(written)} is not {self.kind.expected}", code="bad-value")
        try:
            values = [self.kind.read(name, each, folder) for each in items]
            value = tuple(values) if self.kind.is_many else values[0]
            node_settings(folder, {self.key: value})
        except UsageError as error:
            raise UsageError(self._named(name, error), code=error.code) from error
        return value

    def read_texts(self, name: str, texts: Sequence[str], folder: Path) -> Any:
        """Texts of the command line or the environment as `NodeSettings` has them; UsageError, about `name`."""
        return self.read(name, self.of_texts(name, texts), folder)

    def write(self, value: Any) -> Written:
        """The inverse of `read`."""
        written: Written = [self.kind.write(each) for each in value] if self.kind.is_many else self.kind.write(value)
        return written

    def texts(self, value: Any) -> list[str]:
        """The texts that `read_texts` reads as this value."""
        written = self.write(value)
        if isinstance(written, list):
            return written
        return [str(written).lower() if isinstance(written, bool) else str(written)]

    def words(self, value: Any) -> list[str]:
        """The words of a command line that give it this value; none for an empty list, which no flag can give."""
        if self.kind is SWITCH:
            return [self.flag if value else self.opposite]
        return [word for text in self.texts(value) for word in (self.flag, text)]

    def _named(self, name: str, error: UsageError) -> str:
        """The error's sentence, in which the flag is called `name`."""
        words = re.sub(rf"{re.escape(self.flag)}(?![\w-])", lambda _: name, str(error))
        return words if name in words else f"{name}: {words}"


SETTINGS = (
    Setting("port", WHOLE, "For other peers (TCP); this one and the next. 0: any."),
    Setting("listen-host", TEXT, "The address on which other peers reach us."),
    Setting("admin-port", WHOLE, "For the admin API. 0: any."),
    Setting("admin-host", TEXT, "The address of the admin API; keep it private."),
    Setting(
        "bootstrap",
        TEXTS,
        "A node to find the others by: /ip4/192.0.2.7/tcp/4101 or /dns4/NAME/tcp/4101, with /p2p/ID if no other may "
        "answer there; may be repeated.",
        metavar="MULTIADDR",
    ),
    Setting("no-mdns", SWITCH, "Neither look for nodes on the local network nor be found there."),
    Setting("no-port-mapping", SWITCH, "Do not ask the home router, by NAT-PMP or UPnP, to let others in."),
    Setting(
        "threads",
        WHOLE,
        "Threads of a training process.",
        usually="1 on up to 4 cores, else half of them",
    ),
    Setting("device", TEXT, "To train on: cpu, mps, cuda, cuda:1; auto: the fastest here."),
    Setting(
        "micro-batch",
        WHOLE,
        "Sequences to train on at once, at most. 0: as many as fit.",
        field="trainer.micro_batch",
    ),
    Setting(
        "recompute",
        SWITCH,
        "Make activations again instead of keeping them: slower, with less memory.",
        field="trainer.recompute",
    ),
    Setting("compile", SWITCH, "Compile the model's layers, if there is a compiler.", field="trainer.compiled"),
    Setting(
        "weights",
        FOLDERS,
        "Base weights for runs of LoRA adapters: a folder of safetensors; may be repeated.",
        field="trainer.weights",
    ),
    Setting("data", PATHS, "Text for runs about text of one's own: a file or folder; may be repeated."),
    Setting(
        "data-limit",
        NUMBER,
        "How much of a run's text to download at most, if it is not here. 0: nothing.",
        metavar="GIB",
    ),
    Setting("no-share-data", SWITCH, "Give no member the text of a run."),
    Setting("max-up", RATE, "Send no faster than this, all in all: 20Mbit or 2.5MB/s; none: as fast as it goes."),
    Setting("max-down", RATE, "Receive no faster than this, all in all."),
    Setting(
        "max-per-day",
        VOLUME,
        "Send and receive no more than this a day (UTC), as 20GB: it pauses its runs until the next.",
    ),
    Setting(
        "schedule",
        HOURS,
        "Train in these hours only, by the local clock: 22:00-07:00, or Mon-Fri 22:00-07:00, Sat-Sun 00:00-24:00.",
    ),
    Setting(
        "only-when-idle",
        WHOLE,
        "Train only when nobody has used this machine for so many minutes. 0: always.",
        metavar="MINUTES",
    ),
    Setting("only-on-mains", SWITCH, "Pause while the machine runs on its battery."),
    Setting("yield-gpu", SWITCH, "Pause while another process uses an NVIDIA GPU of this machine."),
    Setting("checkpoint-every", WHOLE, "Rounds between two checkpoints. 0: none."),
    Setting("checkpoint-keep", WHOLE, "Checkpoints to keep of each run."),
    Setting("create", PATH, "Be in this manifest's run; found it if we are not in it.", metavar="MANIFEST"),
    Setting(
        "join",
        RUNS,
        "Be in this run (its link, id or manifest): join it as soon as a peer knows it; may be repeated.",
    ),
    Setting("no-train", SWITCH, "Keep the state and vote, but do not train (weight 0)."),
)
BY_KEY = {each.key: each for each in SETTINGS}


def find_setting(key: str) -> Setting:
    """The setting of this key; UsageError, with the nearest key, if there is none."""
    if key in BY_KEY:
        return BY_KEY[key]
    raise UsageError(f"unknown key {_shown(key)}; the nearest known key is '{nearest(key)}'", code="unknown-key")


def nearest(key: str) -> str:
    """The known key that is most like this one."""
    import difflib  # not at the top: `shoal --help` does without

    return difflib.get_close_matches(key.lower().replace("_", "-").lstrip("-"), BY_KEY, n=1, cutoff=0.0)[0]


# -- values of all settings ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting's value, as it is read, and where it comes from."""

    value: Any
    origin: str = DEFAULT


def choose(root: Path, *layers: tuple[str, Mapping[str, Any]]) -> dict[str, Choice]:
    """The value of each setting, by key, from (origin, values by key); a later layer beats an earlier one."""
    chosen = {key: Choice(value) for key, value in values_of(NodeSettings(root)).items()}
    for origin, values in layers:
        chosen |= {key: Choice(value, origin) for key, value in values.items()}
    return chosen


def of_environment(environ: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The values, by key, of the variables that are set; UsageError, about the variable. Empty ones do not count."""
    found = {}
    for each in SETTINGS:
        if text := environ.get(each.variable):
            texts = text.split(each.kind.between) if each.kind.is_many else [text]
            if texts := [word for word in texts if word.strip()]:  # an empty path would be the current folder
                found[each.key] = each.read_texts(each.variable, texts, folder)
    return found


def node_settings(root: Path, values: Mapping[str, Any]) -> NodeSettings:
    """The settings of the node at home in `root`; `values` are by key, and what lacks has its default."""
    fields: dict[str, dict[str, Any]] = {"": {}, "trainer": {}}
    for key, value in values.items():
        owner, name = BY_KEY[key].place
        fields[owner][name] = not value if BY_KEY[key].turns_off else value
    return NodeSettings(root, **fields[""], trainer=TrainerOptions(**fields["trainer"]))


def values_of(settings: NodeSettings) -> dict[str, Any]:
    """The inverse of `node_settings`."""
    values = {}
    for each in SETTINGS:
        owner, name = each.place
        value = getattr(settings.trainer if owner else settings, name)
        values[each.key] = not value if each.turns_off else value
    return values


def written(settings: NodeSettings) -> dict[str, Written]:
    """All settings as config.toml would have them, by key."""
    return {key: BY_KEY[key].write(value) for key, value in values_of(settings).items()}


def flags_of(settings: NodeSettings) -> list[str]:
    """The flags that give a node these settings, as far as neither the environment nor config.toml adds something.

    What is off, empty or unlimited has no flag here.
    """
    given = {key: value for key, value in values_of(settings).items() if value is not False and value is not None}
    return [word for key, value in given.items() for word in BY_KEY[key].words(value)]


def _shown(value: object) -> str:
    """A wrong value or key, as far as one wants to read it."""
    import json  # not at the top: `shoal --help` does without

    try:
        return json.dumps(value, ensure_ascii=False)[:MAX_SHOWN]
    except (TypeError, ValueError, RecursionError):  # a date, for example
        return str(value)[:MAX_SHOWN]
