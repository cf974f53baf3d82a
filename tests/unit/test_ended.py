"""Why a worker ended: what is final, and what may pass."""

from __future__ import annotations

import pytest

from shoal.node.room import NoRoom
from shoal.node.worker.ended import MAX_REASON, reason_of
from shoal.protocol.errors import LocalError, RemoteError, TransportError


def after(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words", "is_final"),
    [
        (LocalError("cuda is not here"), "cuda is not here", True),
        (TransportError("the hub does not answer"), "the hub does not answer", False),
        (RemoteError("bad bytes"), "bad bytes", False),
        (NoRoom("too large, now"), "too large, now", False),
        (MemoryError(), "memory has run out", False),
        (after(LocalError("one sequence does not fit"), RuntimeError("CUDA out of memory")), "one sequence", False),
        (after(LocalError("cannot write"), OSError(28, "No space left on device")), "cannot write", False),
        (ArithmeticError("the loss is nan"), "ArithmeticError: the loss is nan", False),
        (RuntimeError("CUDA error: an illegal memory access"), "RuntimeError: CUDA error", False),
        (KeyError("a bug"), "KeyError: 'a bug'", False),
    ],
)
def test_only_what_a_worker_blames_on_its_machine_is_final(error: Exception, words: str, is_final: bool) -> None:
    reason, final = reason_of(error)
    assert reason.startswith(words)
    assert final == is_final


def test_a_reason_is_not_long() -> None:
    assert len(reason_of(LocalError("x" * 5000))[0]) == MAX_REASON
