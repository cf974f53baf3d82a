"""Which errors of the system pass by themselves, and which do not."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.shortages import in_words, is_temporary


def caused(cause: BaseException) -> LocalError:
    error = LocalError("cannot write the vote")
    error.__cause__ = cause
    return error


def of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


NUMBERS = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN)
AWAY = (errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH)
PASSING = [*map(of, (*NUMBERS, *AWAY)), MemoryError()]


@pytest.mark.parametrize("error", [*PASSING, caused(of(errno.EMFILE)), ExceptionGroup("all", PASSING)])
def test_a_shortage_passes(error: BaseException) -> None:
    assert is_temporary(error)


@pytest.mark.parametrize(
    "error",
    [
        *map(of, (errno.EIO, errno.EROFS, errno.ENOENT, errno.EACCES, errno.EBADF)),
        caused(of(errno.EIO)),
        LocalError("the manifest contradicts itself"),
        TransportError("nobody answered"),
        KeyError("bug"),
        RuntimeError("bug"),
        ExceptionGroup("some", [of(errno.EMFILE), KeyError("bug")]),
        None,
    ],
)
def test_what_somebody_must_mend_does_not(error: BaseException | None) -> None:
    assert not is_temporary(error)


def test_a_thread_that_cannot_be_started_is_a_shortage() -> None:
    before = threading.stack_size(1 << 46)  # bytes: more than any machine maps
    try:
        with pytest.raises(RuntimeError) as caught:
            threading.Thread(target=int).start()
    finally:
        threading.stack_size(before)
    assert is_temporary(caught.value)


def test_words_are_those_of_the_system_without_a_path() -> None:
    assert in_words(OSError(errno.EMFILE, "Too many open files", "/home/anna/vote")) == "Too many open files"
    assert in_words(MemoryError()) == "MemoryError"
