"""Fault injection for tests: a daemon that kills or stops itself in the middle of an all-reduce.

On loopback an all-reduce lasts some ten milliseconds, too short to be hit from outside. So the victim's daemon reads
`SHOAL_FAULT`, counts the contribution chunks it has written, and sends itself the real signal when the fault's share
is reached and at least one chunk is still unsent. Before that, nothing is flushed, closed or announced. The variable is
read once, when the daemon starts; no message, manifest or API call can arm a fault.

    SHOAL_FAULT="kill round=4 share=0.5 role=any"       SIGKILL, as pulling the plug
    SHOAL_FAULT="stop round=2 share=0.3 role=owner"     SIGSTOP, as a suspended laptop

`role` limits the fault to a round in which this peer has that role from its first chunk on; otherwise it never fires.
So of several nodes with one fault only one is hurt as `proposer`, and not the next one, who takes over from it.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from shoal.protocol.base.errors import LocalError

FAULT_VARIABLE = "SHOAL_FAULT"
MARK = "fault fired:"
"""Prefix of the last line in the victim's log; the rest of the line tells how far the all-reduce had come."""

Kind = Literal["kill", "stop"]
Role = Literal["any", "owner", "contributor", "proposer"]
KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
ROLES: dict[str, Role] = {role: role for role in get_args(Role)}


@dataclass(frozen=True, slots=True)
class Fault:
    """A signal that this node sends itself, and when."""

    kind: Kind
    round: int
    share: float = 0.5  # of the contribution chunks, rounded so that some but not all are sent
    role: Role = "any"

    @staticmethod
    def parse(text: str) -> Fault:
        """The fault that `text` describes; LocalError if it describes none."""
        kind, *settings = text.split() or [""]
        try:
            table = dict(setting.split("=", 1) for setting in settings)
            round, share = int(table.pop("round")), float(table.pop("share", "0.5"))
            role = ROLES[table.pop("role", "any")]
            if table or round < 1 or not 0 < share < 1:
                raise ValueError(text)
            return Fault(KINDS[kind], round, share, role)
        except (KeyError, ValueError) as error:
            raise LocalError(
                f"{FAULT_VARIABLE}={text!r} is not like 'kill round=4 share=0.5 role=any'", code="bad-value"
            ) from error

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"{self.kind} round={self.round} share={self.share} role={self.role}"

    def is_due(self, round: int, sent: int, total: int, role: str) -> bool:
        """Whether to fire now: round and role fit, the share is reached, and some but not all chunks are sent."""
        enough = max(1, min(math.ceil(self.share * total), total - 1))
        return round == self.round and self.role in ("any", role) and enough <= sent < total


@dataclass(slots=True)
class FaultTrigger:
    """Watches a node's contribution and fires its fault once."""

    fault: Fault
    fire: Callable[[str], None]
    fired: bool = field(default=False, init=False)

    def sent(self, round: int, chunk_messages_sent: int, chunk_messages_total: int, role: str) -> None:
        """To be called after each contribution chunk that was written, with this peer's role in the round."""
        if not self.fired and self.fault.is_due(round, chunk_messages_sent, chunk_messages_total, role):
            self.fired = True
            self.fire(f"{chunk_messages_sent} of {chunk_messages_total} chunks sent in round {round}")


def armed_trigger(environ: Mapping[str, str]) -> FaultTrigger | None:
    """The trigger that `SHOAL_FAULT` asks for; None if it is not set, LocalError if it is malformed."""
    if not (text := environ.get(FAULT_VARIABLE)):
        return None
    fault = Fault.parse(text)
    return FaultTrigger(fault, lambda how_far: _signal_self(fault.kind, how_far))


def _signal_self(kind: Kind, how_far: str) -> None:
    os.write(2, f"{MARK} {how_far}\n".encode())  # unbuffered: nothing runs after the signal
    os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
