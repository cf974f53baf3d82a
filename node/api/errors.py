"""Errors of the API, which say whose fault they are: their form over HTTP, and back to exceptions.

{"error": "a sentence", "blame": "caller" | "peer" | "network" | "machine" | "node", "code": "unknown-run"}
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.node.base.room import NoRoom
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError

MIN_PREFIX = 8  # hex characters of a run id: short enough to type, long enough not to collide


class UnknownRun(LocalError):
    """The caller named a run that this node does not have, or several at once."""

    code = "unknown-run"


class UnknownRound(LocalError):
    """The caller named a round that this node does not know, or not any more."""

    code = "unknown-round"


STATUS_AND_BLAME: Mapping[type[ShoalError], tuple[int, str]] = {  # HTTP status and blame; the first match counts
    UnknownRun: (404, "caller"),
    UnknownRound: (404, "caller"),
    RemoteError: (502, "peer"),
    TransportError: (502, "network"),
    NoRoom: (507, "machine"),
    ShoalError: (400, "caller"),
}


def status_and_blame(error: ShoalError) -> tuple[int, str]:
    """The HTTP status and the blame of an error."""
    return next(fault for kind, fault in STATUS_AND_BLAME.items() if isinstance(error, kind))


def error_blaming(message: str, blame: object, code: object = "") -> ShoalError:
    """The exception, on the caller's side, for an error with this blame; LocalError unless peer or network."""
    kinds: dict[object, type[ShoalError]] = {"peer": RemoteError, "network": TransportError}
    return kinds.get(blame, LocalError)(message, code=code if isinstance(code, str) else "")


def find_run(wanted: str, known: Mapping[str, str], kind: str = "run") -> str:
    """The id of the run that `wanted` means among `known` (id in hex -> name).

    `wanted` is an id, a prefix of one, or a name; `kind` says what the runs are, for the UnknownRun that is raised if
    none or several fit.
    """
    if wanted in known:
        return wanted
    lowered = wanted.lower()
    found = [run for run, name in known.items() if name == wanted]
    if len(wanted) >= MIN_PREFIX:
        found += [run for run, name in known.items() if run.startswith(lowered) and name != wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownRun(
            f"'{wanted}' means several runs: {_listing(found, known)}; give more of the id", "ambiguous-run"
        )
    raise UnknownRun(f"this node is in no {kind} '{wanted}'; it is in {_listing(list(known), known) or 'none'}")


def _listing(runs: list[str], known: Mapping[str, str]) -> str:
    return ", ".join(f"{run[:MIN_PREFIX]} ({known[run]})" for run in runs)
