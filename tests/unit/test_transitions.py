"""Each change of a node's state is reported once, with the evidence for it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from shoal.node.api.answers import Status
from shoal.node.api.status import ADVICE, SEARCHING
from shoal.node.daemon.transitions import BAD_HOLDS, GOOD_HOLDS, Transitions

RUN = {"name": "tiny", "members": 6}
EVIDENCE = "tiny: 3 of the last 6 members are lost without a goodbye (aaaaaa, bbbbbb, cccccc)"


def _never() -> Status:
    raise AssertionError("these tests look by themselves")


class Watched:
    """Transitions, looked at each second; `said` are the codes and words so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._transitions = Transitions(_never)
        self._caplog = caplog
        self._now = 0.0
        caplog.set_level(logging.INFO, logger="shoal.daemon")

    def see(self, state: str, seconds: float, **more: Any) -> None:
        evidence = EVIDENCE if state == "SPLIT" else None
        status: Any = {"state": state, "evidence": evidence, "peers": 5, "runs": [RUN], **more}
        end = self._now + seconds
        while self._now < end:
            self._now += 0.5
            self._transitions.look(self._now, status)

    @property
    def said(self) -> list[tuple[str, str, str]]:
        return [(each.levelname, each.__dict__["code"], each.getMessage()) for each in self._caplog.records]


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(caplog)


def test_from_the_start_to_a_cut_and_back(watched: Watched) -> None:
    watched.see("SOLO", 10, runs=[])
    watched.see("CONNECTED", 10)
    for _ in range(50):
        watched.see("CONNECTED", 1)
        watched.see("IN-ROUND", 1)
    watched.see("SPLIT", 60)
    watched.see("CONNECTED", 20, peers=1)
    watched.see("SOLO", 20)
    assert watched.said == [
        ("INFO", "state-solo", "SOLO: nobody is connected yet"),
        ("INFO", "state-together", "CONNECTED: 5 peers are connected; tiny has 6 here"),
        ("WARNING", "state-split", f"SPLIT: {EVIDENCE}. {ADVICE['SPLIT']}"),
        ("INFO", "state-together", "CONNECTED: 1 peer is connected; tiny has 6 here"),
        ("WARNING", "state-solo", f"SOLO: the last connection is lost. {SEARCHING}"),
    ]


def test_a_state_that_flaps_is_said_once(watched: Watched) -> None:
    watched.see("CONNECTED", 10)
    for _ in range(20):
        watched.see("SPLIT", BAD_HOLDS + 1)
        watched.see("CONNECTED", GOOD_HOLDS - 1)
    assert [code for _, code, _ in watched.said] == ["state-together", "state-split"]


def test_the_evidence_is_that_of_the_moment_in_which_it_is_said(watched: Watched) -> None:
    watched.see("SPLIT", BAD_HOLDS / 2, evidence="tiny: 2 of the last 6 members are lost")
    watched.see("SPLIT", BAD_HOLDS)
    assert [words for _, _, words in watched.said] == [f"SPLIT: {EVIDENCE}. {ADVICE['SPLIT']}"]


def test_a_blink_is_not_said(watched: Watched) -> None:
    watched.see("CONNECTED", 10)
    watched.see("SPLIT", BAD_HOLDS / 2)
    watched.see("CONNECTED", 10)
    assert [code for _, code, _ in watched.said] == ["state-together"]


def test_who_has_founded_a_run_and_is_alone_says_what_to_send_and_who_has_left(watched: Watched) -> None:
    founded = RUN | {"members": 1, "link": "shoal2xyz", "left": []}
    invitation = "Send this to whoever is to join: shoal run join shoal2xyz"
    watched.see("SOLO", 10, runs=[founded])
    watched.see("CONNECTED", 10)
    watched.see("SOLO", 10, runs=[founded | {"left": ["12D3KooW7nBFdh"]}])
    first, _, last = watched.said
    assert first == ("INFO", "state-solo", f"SOLO: nobody is connected yet. Nobody else is in tiny. {invitation}")
    words = "SOLO: the last connection is lost. Nobody else is in tiny: 7nBFdh has left. It is back by itself once its "
    words += "node runs again, unless it has left for good. Somebody new joins by: shoal run join shoal2xyz"
    assert last == ("WARNING", "state-solo", words)
