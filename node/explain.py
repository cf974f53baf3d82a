"""Why a document does not fit its schema, in one sentence for the person who wrote it.

The sentence names the key, what is wrong with it and, for an unknown key, the nearest one that exists.
"""

from __future__ import annotations

import difflib

from pydantic import BaseModel, ValidationError

MAX_KEY = 80  # characters of a wrong key that are worth repeating


def explain(error: ValidationError, spec: type[BaseModel]) -> str:
    """An unknown key (it often explains a missing one), else the first thing that is wrong with `spec`'s data."""
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"])[:MAX_KEY]
    if first["type"] == "extra_forbidden":
        known = _known_keys(spec)
        return f"unknown key '{where}'; the nearest known key is '{_nearest(where, known)}'"
    what = first["msg"].removeprefix("Value error, ")
    return f"'{where}': {what}" if where else what


def _known_keys(spec: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of the schema, dotted: tables and what is in them."""
    keys = []
    for name, field in spec.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _known_keys(field.annotation, f"{prefix}{name}.")
    return keys


def _nearest(wrong: str, known: list[str]) -> str:
    """A key of the same table that looks alike, or the key in another table, or the most similar of all."""
    table, _, leaf = wrong.rpartition(".")
    beside = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == table}
    anywhere = {key.rpartition(".")[2]: key for key in known}
    for choice in (beside, anywhere):
        if close := difflib.get_close_matches(leaf, choice, n=1):
            return choice[close[0]]
    return difflib.get_close_matches(wrong, known, n=1, cutoff=0.0)[0]
