"""Fault injection for tests: a daemon that kills or stops itself at a chosen moment of an all-reduce.

On loopback an all-reduce lasts some ten milliseconds, too short to be hit from outside. So the victim's daemon reads
`SHOAL_FAULT`, counts what it has moved (node/run/fault_watch.py), and sends itself the real signal when the moment has
come. Before that, nothing is flushed, closed or announced. The variable is read once, when the daemon starts; no
message, manifest or API call can arm a fault.

    SHOAL_FAULT="kill round=4 share=0.5 role=any when=scatter"     SIGKILL, as pulling the plug
    SHOAL_FAULT="stop round=2 share=0.3 role=owner when=gather"    SIGSTOP, as a suspended laptop

`when` is a stage of the round, of which `share` is done, and not all: `scatter` of the contributions that it sends,
`gather` of the means that an owner sends, or, to who owns nothing, come; `decision` is just before its vote on the
result leaves, or when the others have decided without it. `role` limits the fault to a round in which this peer has
that role from its first chunk on; otherwise it never fires. `proposer` is who was it when the round before was decided:
so of several nodes with one fault only one is hurt, and not the next one, who takes over.
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
Moment = Literal["scatter", "gather", "decision"]
KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
ROLES: dict[str, Role] = {role: role for role in get_args(Role)}
MOMENTS: dict[str, Moment] = {moment: moment for moment in get_args(Moment)}
MOVED: dict[Moment, str] = {"scatter": "chunks sent", "gather": "means moved"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A signal that this node sends itself, and when."""

    kind: Kind
    round: int
    share: float = 0.5  # of the stage's payloads, rounded so that some but not all are moved
    role: Role = "any"
    when: Moment = "scatter"

    @staticmethod
    def parse(text: str) -> Fault:
        """The fault that `text` describes; LocalError if it describes none."""
        kind, *settings = text.split() or [""]
        try:
            table = dict(setting.split("=", 1) for setting in settings)
            round, share = int(table.pop("round")), float(table.pop("share", "0.5"))
            role, when = ROLES[table.pop("role", "any")], MOMENTS[table.pop("when", "scatter")]
            if table or round < 1 or not 0 < share < 1:
                raise ValueError(text)
            return Fault(KINDS[kind], round, share, role, when)
        except (KeyError, ValueError) as error:
            raise LocalError(
                f"{FAULT_VARIABLE}={text!r} is not like 'kill round=4 share=0.5 role=any when=scatter'",
                code="bad-value",
            ) from error

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"{self.kind} round={self.round} share={self.share} role={self.role} when={self.when}"

    def is_due(self, round: int, moved: int, total: int, role: str, when: Moment) -> bool:
        """Whether to fire now: round, role and stage fit, the share is reached, and some but not all is moved."""
        enough = max(1, min(math.ceil(self.share * total), total - 1))
        fits = (round, when) == (self.round, self.when) and self.role in ("any", role)
        return fits and enough <= moved < total


@dataclass(slots=True)
class FaultTrigger:
    """Fires a node's fault once."""

    fault: Fault
    fire: Callable[[str], None]
    fired: bool = field(default=False, init=False)

    def moved(self, round: int, moved: int, total: int, role: str, when: Moment = "scatter") -> None:
        """To be called after each payload of the stage, with how many are moved and this peer's role in the round."""
        if not self.fired and self.fault.is_due(round, moved, total, role, when):
            self.fired = True
            self.fire(f"{moved} of {total} {MOVED[when]} in round {round}")

    def decides(self, round: int, role: str) -> None:
        """To be called before this peer's vote on the round's result leaves, and if it is decided without that vote."""
        if not self.fired and self.fault.is_due(round, 1, 2, role, "decision"):
            self.fired = True
            self.fire(f"in the decision of round {round}")


def armed_trigger(environ: Mapping[str, str]) -> FaultTrigger | None:
    """The trigger that `SHOAL_FAULT` asks for; None if it is not set, LocalError if it is malformed."""
    if not (text := environ.get(FAULT_VARIABLE)):
        return None
    fault = Fault.parse(text)
    return FaultTrigger(fault, lambda how_far: _signal_self(fault.kind, how_far))


def _signal_self(kind: Kind, how_far: str) -> None:
    os.write(2, f"{MARK} {how_far}\n".encode())  # unbuffered: nothing runs after the signal
    os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
