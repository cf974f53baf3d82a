"""Manifests to begin with, for what people most often want: `shoal run init`.

Only keys that are often changed are written; what they mean and may be comes from the schema.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.node.base.keys import allowed, help_of, schemas, value
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.method import METHOD_DEFAULTS

WIDTH = 100  # characters of a comment's line
DEFAULT = object()  # the value of a key: that of the schema


@dataclass(frozen=True, slots=True)
class Later:
    """An example of a key that is left out, which is written as a comment."""

    example: Any


Tables = Mapping[str, Mapping[str, Any]]  # by dotted name, the first lines as ""; keys and their values, in order


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a manifest is for."""

    about: str  # in a line
    tables: Tables
    steps: tuple[str, ...]  # what to do next, in words or code; FILE stands for the manifest
    command: str  # the next one to type


INNER = ("inner_steps", "batch", "inner_lr", "warmup_steps", "decay_share")
METHOD = dict.fromkeys(("name", *INNER, "outer_lr", "outer_momentum"), DEFAULT)
ROUNDS = {"last": 500, "start_members": DEFAULT, "min_members": DEFAULT, "pace": DEFAULT}
CODEC = {"scatter": DEFAULT, "gather": DEFAULT}
SHAPE = ("vocab", "dim", "layers", "heads", "kv_heads", "hidden", "context")
DECODER = {"name": "llama"} | dict.fromkeys(SHAPE, DEFAULT)
TEXTS = {"name": "files", "tokenizer": Later("tokenizer.json"), "column": Later("text")}
OF_A_SCRIPT = ("name", "inner_steps", "batch", "outer_lr", "outer_momentum")  # a script has its own inner optimizer
OTHERS = "The others join by the link that this prints; only this machine needs the files."

PURPOSES: Mapping[str, Purpose] = {
    "text": Purpose(
        "a small language model, trained from scratch on your own files",
        {
            "": {"name": "text", "seed": DEFAULT, "public": DEFAULT},
            "data": TEXTS,
            "model": DECODER,
            "method": METHOD,
            "rounds": ROUNDS,
            "codec": CODEC,
        },
        ("FOLDER has the files.", OTHERS),
        "shoal node start --data FOLDER && shoal run create FILE",
    ),
    "lora": Purpose(
        "adapters (LoRA) on a model of Hugging Face, whose checkpoint each member has in a folder",
        {
            "": {"name": "lora", "seed": DEFAULT, "public": DEFAULT},
            "data": TEXTS | {"tokenizer": "tokenizer.json", "end_of_text": Later("<|endoftext|>")},
            "model": {"name": "hf", "config": "config.json", "context": 512},
            "model.lora": {"rank": DEFAULT, "alpha": DEFAULT, "targets": ["q_proj", "v_proj"], "base": DEFAULT},
            "method": METHOD | {"inner_lr": 2e-4},
            "rounds": ROUNDS,
            "codec": CODEC,
        },
        (
            "It needs Shoal's extra hf, and the checkpoint's config.json beside this file. Where the extra is missing,",
            "the error says what to type.",
            "BASE has the checkpoint's safetensors and its tokenizer.json, FOLDER the files to train on.",
            "The others start their nodes with --weights BASE, too, and join by the link that this prints.",
        ),
        "shoal node start --weights BASE --data FOLDER --data BASE/tokenizer.json && shoal run create FILE",
    ),
    "script": Purpose(
        "your own training script: any torch module, in a loop of your own",
        {
            "": {"name": "script", "public": DEFAULT},
            "method": {key: DEFAULT for key in OF_A_SCRIPT},
            "rounds": ROUNDS,
            "codec": CODEC,
        },
        (
            "The script creates the run, with its own module (docs/scripts.md); `shoal run create` is not needed:",
            "    import tomllib",
            "    from shoal.node import create",
            "    with open(FILE, 'rb') as file:",
            "        run = create(**tomllib.load(file))",
            "    optimizer = run.wrap(optimizer, model)",
            "The others run the same script with join(LINK) in place of create(...); run.link is the link.",
        ),
        "python SCRIPT",
    ),
    "experts": Purpose(
        "a family of experts, each trained by one machine alone on a group of like texts",
        {
            "": {"name": "experts", "seed": DEFAULT, "public": DEFAULT},
            "data": TEXTS,
            "model": DECODER,
            "method": {"name": "experts"} | dict.fromkeys(INNER, DEFAULT),
            "experts": {"steps": DEFAULT, "publish_every": DEFAULT},
            "experts.clusters": {"count": 4, "by": DEFAULT},
        },
        ("FOLDER has the files.", OTHERS, "Parts by folders in place of groups: examples/experts.toml."),
        "shoal node start --data FOLDER && shoal run create FILE",
    ),
}


def manifest_for(purpose: str, file: str) -> str:
    """The text of a manifest for one of `PURPOSES`; `file` is its path, as one types it."""
    chosen = PURPOSES[purpose]
    steps = [each.replace("FILE", repr(file)) if each.startswith(" ") else each for each in chosen.steps]
    lines = [
        f"# A manifest for {chosen.about}.",
        "# All members of the run must agree on what is here. What is not here has its default: docs/manifest.md.",
        *(line for path, keys in chosen.tables.items() for line in _table(path, keys, chosen.tables)),
        "",
        "# Next:",
        *(f"# {each}" for each in steps),
        f"#     {next_command(purpose, file)}",
    ]
    return "\n".join(lines) + "\n"


def next_command(purpose: str, file: str) -> str:
    """What to type once the manifest is as one wants it; words in capitals stand for paths that the person knows."""
    return PURPOSES[purpose].command.replace("FILE", shlex.quote(file))


def _table(path: str, keys: Mapping[str, Any], tables: Tables) -> Iterator[str]:
    fields = _schema(path, tables).model_fields
    yield from ("", f"[{path}]") if path else ()
    for name, given in keys.items():
        usual = _default(path, name, fields[name], tables)
        yield from ("", *_comment(fields[name], usual))
        chosen = given.example if isinstance(given, Later) else usual if given is DEFAULT else given
        yield f"{'# ' if isinstance(given, Later) else ''}{name} = {value(chosen)}"


def _schema(path: str, tables: Tables) -> type[BaseModel]:
    """The schema of a table; of several kinds the one that its `name` chooses."""
    schema: type[BaseModel] = Manifest
    parts = path.split(".") if path else []
    for place, part in enumerate(parts, start=1):
        choices = dict(schemas(schema.model_fields[part].annotation))
        kind = tables[".".join(parts[:place])].get("name", "")
        schema = choices.get("") or choices[kind]
    return schema


def _default(path: str, name: str, field: FieldInfo, tables: Tables) -> Any:
    """The default of a key, None if it has none; some of the method's depend on the method."""
    usual = None if field.is_required() else field.default
    return METHOD_DEFAULTS.get(tables["method"]["name"], {}).get(name, usual) if path == "method" else usual


def _comment(field: FieldInfo, usual: Any) -> Iterator[str]:
    may_be = allowed(field.annotation, field.metadata)
    default = "no default" if usual in (None, "", ()) else f"{value(usual)} by default"
    for sentence in (str(help_of(field) or ""), f"{may_be[:1].upper()}{may_be[1:]}; {default}."):
        yield from (f"# {line}" for line in wrap(sentence, WIDTH, break_on_hyphens=False))
