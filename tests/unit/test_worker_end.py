"""Why a worker ended: which causes are final, and which may pass."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shoal.node.base.room import NoRoom
from shoal.node.ipc.worker_end import ALIKE, MAX_REASON, WorkerEnd, WorkerHistory, failure_reason
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError


def after(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words", "is_final", "is_mistake"),
    [
        (LocalError("cuda is not here"), "cuda is not here", True, False),
        (TransportError("the hub does not answer"), "the hub does not answer", False, False),
        (RemoteError("bad bytes"), "bad bytes", False, False),
        (NoRoom("too large, now"), "too large, now", False, False),
        (MemoryError(), "memory has run out", False, False),
        (
            after(LocalError("one sequence does not fit"), RuntimeError("CUDA out of memory")),
            "one sequence",
            False,
            False,
        ),
        (after(LocalError("cannot write"), OSError(28, "No space left on device")), "cannot write", False, False),
        (ArithmeticError("the loss is nan"), "ArithmeticError: the loss is nan", False, False),
        (RuntimeError("CUDA error: an illegal memory access"), "RuntimeError: CUDA error", False, False),
        (KeyError("a bug"), "KeyError: 'a bug'", False, True),
        (IndexError("index 32 is out of bounds"), "IndexError: index 32", False, True),
        (RuntimeError("The size of tensor a (16) must match"), "RuntimeError: The size", False, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), "RuntimeError: cuDNN", False, False),
        (PermissionError(13, "Permission denied", "/data"), "cannot use /data", False, False),
    ],
)
def test_only_what_a_worker_blames_on_its_machine_is_final(
    error: Exception, words: str, is_final: bool, is_mistake: bool
) -> None:
    reason = failure_reason(error)
    assert reason.words.startswith(words)
    assert (reason.is_final, reason.is_mistake) == (is_final, is_mistake)


def ends(lives: WorkerHistory, mistakes: Iterable[str]) -> list[bool]:
    return [lives.judge(WorkerEnd(f"the worker has failed: {each}", mistake=each)).is_final for each in mistakes]


def test_the_same_mistake_of_each_worker_before_any_step_is_final() -> None:
    lives = WorkerHistory()
    assert ends(lives, ["IndexError: 32"] * ALIKE) == [False] * (ALIKE - 1) + [True]
    assert f"IndexError: 32; so did each of {ALIKE + 1} workers before its first step" in str(
        lives.judge(WorkerEnd("the worker has failed: IndexError: 32", mistake="IndexError: 32"))
    )


def test_what_may_pass_never_is_however_often() -> None:
    assert not any(ends(WorkerHistory(), [""] * 3 * ALIKE)), "crashes, or a network that fails"
    assert not any(ends(WorkerHistory(), ["IndexError: 32", "IndexError: 33"] * 2 * ALIKE)), "each time something else"
    assert not any(ends(WorkerHistory(), ["IndexError: 32", *["IndexError: 32"] * (ALIKE - 2), ""] * 3)), "not in a row"
    lives = WorkerHistory()
    lives.stepped()
    assert not any(ends(lives, ["IndexError: 32"] * 2 * ALIKE)), "it has trained here"


def test_a_reason_is_not_long() -> None:
    assert len(failure_reason(LocalError("x" * 5000)).words) == MAX_REASON
