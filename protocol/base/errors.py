"""Errors; their types say who is to blame: this node, a peer, or the network.

ShoalError
├── LocalError       we, or our user: a bad file, flag or state. The message says what to do.
│   └── Shortage       this machine is short of something; the same may work later
├── RemoteError      a peer sent what it must not. Names the peer; our state is unchanged.
│   └── PayloadError   a chunk's bytes: wrong size, NaN or Inf
└── TransportError   nobody's fault: the connection broke or nobody answered. Worth a retry.
"""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId

NOT_SPOKEN = "not-spoken"  # the code of a TransportError: the peer answers, but does not speak that protocol
LOST = "lost"  # likewise: the connection was lost during a call
MAX_REASON = 400  # characters; reasons are logged and shown


class ShoalError(Exception):
    """Base of every error that Shoal raises on purpose."""


class LocalError(ShoalError):
    """Our own mistake or our user's; retrying without a change is useless."""


class Shortage(LocalError):
    """This machine is short of a resource, which may pass by itself: see shortages.py."""


class RemoteError(ShoalError):
    """A peer broke the protocol. Nothing it sent has changed our state."""

    def __init__(self, reason: str, peer: PeerId | None = None) -> None:
        self.reason = _one_line(reason)
        super().__init__(self.reason)
        self.peer = peer

    def __str__(self) -> str:
        return f"peer {self.peer}: {self.reason}" if self.peer else self.reason


class PayloadError(RemoteError):
    """The bytes of a chunk are not what its codec makes: wrong size, NaN or Inf."""


class TransportError(ShoalError):
    """The network failed; the same call may work later. `code` says how, for programs: see journal.py."""

    def __init__(self, reason: str, code: str = "failed") -> None:
        super().__init__(reason)
        self.code = code


def _one_line(reason: str) -> str:
    """`reason`, shortened and without control characters: it may quote a peer, and is logged and shown in terminals."""
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:MAX_REASON])
