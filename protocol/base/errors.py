"""Errors; their types say who is to blame: this node, a peer, or the network.

ShoalError
├── LocalError       we, or our user: a bad file, flag or state. The message says what to do.
│   └── Shortage       this machine is short of something; the same may work later
├── RemoteError      a peer sent what it must not. Names the peer; our state is unchanged.
│   └── PayloadError   a chunk's bytes: wrong size, NaN or Inf
└── TransportError   nobody's fault: the connection broke or nobody answered. Worth a retry.

Each error has a `code` (kebab-case): the kind of mistake, for programs and to search for. A class has a general one; a
raise site names another where that tells more. A code never changes its meaning. docs/errors.md lists all of them.
"""

from __future__ import annotations

import re

from shoal.protocol.base.ids import PeerId

NOT_SPOKEN = "not-spoken"  # the code of a TransportError: the peer answers, but does not speak that protocol
LOST = "lost"  # likewise: the connection was lost during a call
MAX_REASON = 400  # characters; reasons are logged and shown


SHOWN = re.compile(r"(.*) \[([a-z0-9]+(?:-[a-z0-9]+)*)\]", re.DOTALL)


class ShoalError(Exception):
    """Base of every error that Shoal raises on purpose; `code` is the kind of mistake, "" that of the class."""

    code: str

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        if code:
            self.code = code


class LocalError(ShoalError):
    """Our own mistake or our user's; retrying without a change is useless."""

    code = "not-possible"


class Shortage(LocalError):
    """This machine is short of a resource, which may pass by itself: see shortages.py."""

    code = "shortage"


class RemoteError(ShoalError):
    """A peer broke the protocol. Nothing it sent has changed our state."""

    code = "peer-blamed"

    def __init__(self, reason: str, peer: PeerId | None = None, code: str = "") -> None:
        self.reason = _one_line(reason)
        super().__init__(self.reason, code)
        self.peer = peer

    def __str__(self) -> str:
        return f"peer {self.peer}: {self.reason}" if self.peer else self.reason


class PayloadError(RemoteError):
    """The bytes of a chunk are not what its codec makes: wrong size, NaN or Inf."""

    code = "bad-payload"


class TransportError(ShoalError):
    """The network failed; the same call may work later. Codes of dials are those of journal.py."""

    code = "failed"


def with_code(words: str, code: str) -> str:
    """A sentence with its code, as commands and logs show it: `words [code]`."""
    return f"{words} [{code}]" if code else words


def split_code(words: str) -> tuple[str, str]:
    """(the sentence, its code): what `with_code` has put together; the code is "" if there is none."""
    found = SHOWN.fullmatch(words)
    return (found[1], found[2]) if found else (words, "")


def _one_line(reason: str) -> str:
    """`reason`, shortened and without control characters: it may quote a peer, and is logged and shown in terminals."""
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:MAX_REASON])
