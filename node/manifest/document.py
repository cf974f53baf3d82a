"""Prints docs/manifest.md from the schema: `python -m shoal.node.manifest.document > docs/manifest.md`."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.node.base.keys import allowed, bare, help_of, schemas, value
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.method import (
    DEFAULT_SCATTER,
    FIXED_SETTINGS,
    METHOD_DEFAULTS,
    REPLICA_METHODS,
    SPECIAL_SETTINGS,
    MethodName,
)

HEAD = """# The manifest

A run is described by a TOML file, its manifest: everything that its members must agree on, and nothing else. What
concerns one machine (its device, paths, limits) is a flag of `shoal node start` instead. A run's id is the hash of
its manifest, its author's key and a random number: creating from one file twice makes two runs.

```sh
shoal run init                # the purposes for which there is a manifest to begin with
shoal run init text my.toml   # writes one, with comments
shoal run create my.toml      # checks it, creates the run and prints its link
```

A key that is left out has its default; only `name` must be there. A mistake is told with its line, the key, what was
given and what is allowed, before anything is started. Examples are in [examples/](../examples).

This page is printed from the schema in [node/manifest/](../node/manifest), by
`python -m shoal.node.manifest.document`; a test compares them.
"""

METHODS = """## Settings by method

What a method does is in [methods.md](methods.md). In the table are the defaults that differ from those of
[`[method]`](#method), the settings that a method always has (others are refused), and how contributions are written on
their way (`codec.scatter`) unless the manifest says otherwise. A setting whose default is "by method" belongs to the
methods in whose row it stands, and is refused with others.

| method | its defaults | always | contributions |
|---|---|---|---|
"""

FILLED_IN = """# Tables that are filled in

`shoal run create` and scripts write these; a person leaves them out.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the manifest, as its page has it."""

    title: str  # such as "`[model]` of kind `hf`"
    schema: type[BaseModel]

    @property
    def link(self) -> str:
        """A link to its section, by the anchor that GitHub makes of the title."""
        return f"[{self.title}](#{re.sub('[^a-z0-9_ -]', '', self.title.lower()).replace(' ', '-')})"


def document() -> str:
    """The text of docs/manifest.md."""
    written, filled_in = tables()
    titles = {each.schema: each for each in (*written, *filled_in)}
    return (
        "\n".join(
            [
                HEAD,
                *(_section(each, titles) for each in written),
                METHODS + "\n".join(map(_method, get_args(MethodName))) + "\n",
                FILLED_IN,
                *(_section(each, titles) for each in filled_in),
            ]
        ).rstrip("\n")
        + "\n"
    )


def tables() -> tuple[list[Table], list[Table]]:
    """All tables, each once, in order: those that people write, and those that are filled in."""
    written, pending = list[Table](), list[Table]()
    _collect(Table("The first lines", Manifest), "", written, pending)
    everything = [*written]
    for each in pending:
        _collect(each, each.title.strip("`[]"), everything, everything)
    return written, everything[len(written) :]


def _collect(table: Table, path: str, into: list[Table], pending: list[Table]) -> None:
    """Append a table and those in it; to `pending` those that are filled in."""
    if table.schema in {each.schema for each in into}:
        return
    into.append(table)
    for name, field in table.schema.model_fields.items():
        inner = f"{path}.{name}".removeprefix(".")
        brackets = f"[[{inner}]]" if get_origin(bare(field.annotation)) is tuple else f"[{inner}]"
        for kind, schema in schemas(field.annotation):
            found = Table(f"`{brackets}` of kind `{kind}`" if kind else f"`{brackets}`", schema)
            if _is_filled_in(field) and into is not pending:
                pending.append(found)
            else:
                _collect(found, inner, into, pending)


def _section(table: Table, titles: dict[type[BaseModel], Table]) -> str:
    about = _about(table.schema) if table.schema is not Manifest else "Keys of no table stand before the first one."
    rows = [_row(table, name, field, titles) for name, field in table.schema.model_fields.items()]
    head = ["| key | what it may be | default | what it means |", "|---|---|---|---|"]
    return "\n".join([f"## {table.title}", "", about, "", *head, *rows, ""])


def _row(table: Table, name: str, field: FieldInfo, titles: dict[type[BaseModel], Table]) -> str:
    inner, help = [schema for _, schema in schemas(field.annotation)], help_of(field)
    if inner:
        kind = "a table" if len(inner) == 1 else "one of the tables"
        kind = "tables" if get_origin(bare(field.annotation)) is tuple else kind
        may_be = f"{kind} {', '.join(titles[schema].link for schema in inner)}"
    else:
        may_be = allowed(field.annotation, field.metadata)
    means = str(help or _about(inner[0]))
    cells = (f"`{name}`", may_be, _default(name, field), means)
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |"


def _about(schema: type[BaseModel]) -> str:
    """The first paragraph of its docstring."""
    return inspect.cleandoc(schema.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _default(name: str, field: FieldInfo) -> str:
    if _is_filled_in(field):
        return "filled in"
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel):
        return "its defaults"
    if field.default is None:
        return "by method" if name in SPECIAL_SETTINGS else "none"
    return "empty" if field.default in ("", ()) else f"`{value(field.default)}`"


def _is_filled_in(field: FieldInfo) -> bool:
    help = help_of(field)
    return help is not None and help.is_filled_in


def _method(name: str) -> str:
    always = FIXED_SETTINGS.get(name, ())
    given = dict[str, Any](METHOD_DEFAULTS.get(name, {}))
    own = {key: None for key, owners in SPECIAL_SETTINGS.items() if name in owners}
    defaults = {key: each for key, each in (own | given).items() if key not in always}
    if name in REPLICA_METHODS:
        defaults["delay"] = "half of `inner_steps`"
    fixed = ", ".join(f"`{key}` {value(given[key])}" for key in always)
    words = ", ".join(f"`{key}` {_setting(each)}" for key, each in defaults.items())
    return f"| `{name}` | {words} | {fixed} | {DEFAULT_SCATTER.get(name, 'fp32')} |"


def _setting(default: Any) -> str:
    return "none" if default is None else default if isinstance(default, str) else value(default)


if __name__ == "__main__":
    print(document(), end="")
