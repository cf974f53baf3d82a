"""HandshakePool in threads: who is turned away leaves nothing behind."""

from __future__ import annotations

import socket
import threading

import pytest

from shoal.protocol.net.bulk.endpoint import HandshakePool


def test_who_is_turned_away_as_no_thread_can_be_had_is_not_served_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is in the pool's queue by then: it is not done on a closed socket, nor counted off twice."""
    handshakes, go_on, served = HandshakePool(at_once=2, waiting=2), threading.Event(), list[str]()
    pairs = [socket.socketpair() for _ in range(3)]

    def serve() -> None:
        go_on.wait(30.0)
        served.append("bert again")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    try:
        first = handshakes.begin("anna", pairs[0][0], lambda: go_on.wait(30.0))
        assert first is not None
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert handshakes.begin("bert", pairs[1][0], lambda: served.append("bert")) is None
        assert pairs[1][0].fileno() == -1
        again = handshakes.begin("bert", pairs[2][0], serve)
        assert again is not None
        with handshakes._lock:
            assert handshakes._of == {"anna": 1, "bert": 1}
        go_on.set()
        first.result(30.0), again.result(30.0)
    finally:
        go_on.set()
        handshakes.close()
        handshakes.join()
        for each in (end for pair in pairs for end in pair):
            each.close()
    assert served == ["bert again"]
