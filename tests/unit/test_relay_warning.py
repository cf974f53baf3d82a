"""A run whose payloads take relays warns once, and says when that is over."""

from __future__ import annotations

import logging

import pytest

from shoal.node.run.relay_warning import CODE, RelayWarning, words
from shoal.protocol.averaging.apart import ways_between
from shoal.protocol.averaging.events import Begun
from tests.unit.rounds_kit import PEERS, ROUND, A, offer

ALONE = {peer: tuple(each for each in PEERS if each != peer) for peer in PEERS}
ADDRESSES = ("/ip4/192.168.1.2/tcp/4201",)
DIRECT = Begun(ROUND, PEERS, PEERS, A)
RELAYED = Begun(ROUND, PEERS, PEERS, A, ways_between([offer(peer, apart=ALONE[peer]) for peer in PEERS]))


def test_nothing_is_said_while_no_payload_takes_a_relay(caplog: pytest.LogCaptureFixture) -> None:
    detours = RelayWarning("tiny")
    detours.begun(DIRECT, ADDRESSES)
    assert detours.warnings() == []
    assert caplog.records == []


def test_a_warning_stands_while_they_do_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    detours = RelayWarning("tiny")
    for _ in range(2):
        detours.begun(RELAYED, ADDRESSES)
    assert detours.warnings() == [{"code": CODE, "words": words(RELAYED, 4201)}]
    assert "payloads of 3 of 3 members take relays" in words(RELAYED, 4201)
    assert "forward TCP 4201 and 4202 to this machine" in words(RELAYED, 4201)
    assert [each.code for each in caplog.records] == [CODE]  # type: ignore[attr-defined]
    for _ in range(2):
        detours.begun(DIRECT, ADDRESSES)
    assert detours.warnings() == []
    assert "no payload takes a relay any more" in caplog.records[-1].message
    assert len(caplog.records) == 2


def test_an_exchange_by_a_relay_is_warned_of_until_one_takes_another_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    detours = RelayWarning("tiny")
    for path in ("direct", "relayed", "relayed", "direct"):
        detours.met(path, ADDRESSES)
    warned, over = caplog.records
    assert "the exchange of this round is slow" in warned.message
    assert "forward TCP 4201 and 4202" in warned.message
    assert "no payload takes a relay any more" in over.message
    assert detours.warnings() == []
