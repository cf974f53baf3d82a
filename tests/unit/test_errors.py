"""Errors: what a peer sent may be quoted in them, and must not break a log's line or steer a terminal."""

from __future__ import annotations

from shoal.protocol.base.errors import MAX_REASON, PayloadError, RemoteError
from shoal.protocol.base.ids import PeerId


def test_the_culprit_is_named() -> None:
    assert str(RemoteError("lies", PeerId("bob"))) == "peer bob: lies"
    assert str(RemoteError("lies")) == "lies"


def test_a_reason_is_one_printable_line_of_bounded_length() -> None:
    error = PayloadError("a forged entry of \x1b[2J\nERROR all is lost\u202e" + "x" * 10_000, PeerId("bob"))
    assert error.reason.startswith("a forged entry of ?[2J?ERROR all is lost?xxx")
    assert len(error.reason) == MAX_REASON
