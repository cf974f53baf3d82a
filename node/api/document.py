"""Prints docs/api.md from the table of operations: `python -m shoal.node.api.document > docs/api.md`."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from shoal.node.api.errors import STATUS_AND_BLAME
from shoal.node.api.operations import OPERATIONS, Operation

HEAD = """# The admin API

A node answers HTTP on its admin port (`--admin-port`, 127.0.0.1:4180 by default). `shoal` itself, scripts, `shoal up`
and the page use what is listed here, and nothing else.

    curl -H "Authorization: Bearer $(cat $SHOAL_HOME/token)" http://127.0.0.1:4180/v1/status

Every request shows the token of the node's home folder. The body of a POST is a JSON object, at least `{}` and at most
256 KiB; a key with the value `null` counts as left out. `run` is a run's id in hex, a prefix of it of at least 8
characters, or its name; `family` is the same for a family of experts. Answers are JSON. A published key keeps its
meaning; new keys may appear, so readers should ignore keys that they do not know. The header `Shoal-Version` names the
node's version.

An error is `{"error": "a sentence", "blame": "...", "code": "..."}`. The code is for programs and never changes its
meaning ([errors.md](errors.md)); `blame` says whose fault it was:

| status | blame | when |
|---|---|---|
| 400 | `caller` | what was asked makes no sense, or cannot be done |
| 401, 403 | `caller` | no token or a wrong one; a foreign Host or page |
| 404, 405, 413, 429 | `caller` | no such run, round or route; no such method; a body too large; too many wrong tokens |
| 500 | `node`, `machine` | a bug; a refusal of the operating system |
| 502 | `peer`, `network` | a peer broke the protocol; nobody answered |
| 503 | `caller` | too many open pages |
| 507 | `machine` | no room in memory or on the disk |

Browsers have `/` (the page), `/v1/login`, `/v1/logout` and `/v1/events` besides; `/metrics` is for Prometheus
([monitoring.md](monitoring.md)). What the page offers says so; for all other changes a browser needs the token, too.

This page is printed from the table in [node/api/operations.py](../node/api/operations.py), by
`python -m shoal.node.api.document`; a test compares them.
"""


def document() -> str:
    """The text of docs/api.md."""
    answers: dict[str, Any] = {}
    for each in OPERATIONS:
        _collect(each.answer, answers)
    parts = [HEAD, "## Operations\n", *map(_operation, OPERATIONS), "## Answers\n"]
    return "\n".join([*parts, *(_answer(name, kind) for name, kind in sorted(answers.items()))])


def _operation(each: Operation[Any, Any]) -> str:
    lines = [f"### `{each.method} {each.path}`", "", each.about, ""]
    request: Any = each.request
    hints = get_type_hints(request, include_extras=True)
    for field in fields(request):
        kind, words = _hint(hints[field.name])
        where = "path" if f"{{{field.name}}}" in each.path else "query" if each.method == "GET" else "body"
        optional = "" if field.default is MISSING else ", may be left out"
        lines.append(f"- `{field.name}` ({where}, {kind}{optional}){f': {words}' if words else ''}")
    lines += [""] if fields(request) else []
    status = "" if each.status == 200 else f" (status {each.status})"
    answer = f"- Answer{status}: {_kind(each.answer)}{', one JSON object a line' if each.in_lines else ''}."
    faults = sorted({STATUS_AND_BLAME[error][0] for error in each.errors})
    wrong = [f"- Errors: {', '.join(map(str, faults))}."] if faults else []
    offered = ["- The page offers it."] if each.on_page else []
    return "\n".join([*lines, answer, *wrong, *offered, ""])


def _answer(name: str, kind: Any) -> str:
    rows = []
    for key, hint in get_type_hints(kind, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired or key not in kind.__required_keys__
        json_type, words = _hint(hint)
        told = "; ".join(([words] if words else []) + (["may be absent"] if is_optional else []))
        rows.append(f"| `{key}` | {json_type} | {told.replace('|', chr(92) + '|')} |")
    return "\n".join([f"### {name}", "", kind.__doc__, "", "| key | type | |", "|---|---|---|", *rows, ""])


def _collect(hint: Any, into: dict[str, Any]) -> None:
    """Collect all TypedDicts within a type, by name."""
    if is_typeddict(hint):
        into[hint.__name__] = hint
        for each in get_type_hints(hint).values():
            _collect(each, into)
    for each in get_args(hint):
        _collect(each, into)


def _hint(hint: Any) -> tuple[str, str]:
    """(the type for readers, the words of its annotation or "")."""
    if get_origin(hint) is NotRequired:
        return _hint(get_args(hint)[0])
    if get_origin(hint) is Annotated:
        kind, words = get_args(hint)
        return _kind(kind), words
    return _kind(hint), ""


KINDS = {str: "text", bool: "true or false", int: "integer", float: "number", dict: "object", NoneType: "null"}


def _kind(hint: Any) -> str:
    if is_typeddict(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if isinstance(hint, UnionType):
        return " or ".join(map(_kind, get_args(hint)))
    origin = get_origin(hint) or hint
    if origin is dict:
        return "object"
    if origin not in KINDS:  # a list, or another sequence
        return f"list of {_kind(get_args(hint)[0])}"
    return KINDS[origin]


if __name__ == "__main__":
    print(document(), end="")
