"""benchmarks/goodput.py: what a window shows of the rounds in it, and what peers of hivemind tell of theirs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from kit.daemons import TooLate
from kit.hivemind_swarm import Peer, rounds
from kit.swarm import Round, Swarm

from shoal.node.client.up.processes import Children


class Scripted(Swarm):
    """Has made these rounds when a window begins, and those when it ends."""

    def __init__(self, before: Sequence[Round], later: Sequence[Round]) -> None:
        super().__init__(3)
        self._seen = [before, [*before, *later]]
        self.killed: list[int] = []

    def settle(self) -> None:
        pass

    def last(self, count: int) -> Sequence[Round]:
        return self._seen.pop(0)[-count:]

    def kill(self, member: int) -> None:
        self.killed.append(member)


def test_a_window_is_from_the_last_round_before_it_to_the_last_in_it() -> None:
    swarm = Scripted([Round(3, 1.0, 100), Round(4, 2.0, 500)], [Round(5, 3.0, 600), Round(6, 6.0, 900)])
    seen = swarm.window(0.5, 0.2, swarm.blows()["kills"])
    assert (seen.goodput, seen.pause) == (100.0, 3.0)
    assert swarm.killed == [1, 2]


def test_a_window_without_a_round_is_an_error() -> None:
    with pytest.raises(TooLate, match="no round"):
        Scripted([Round(3, 1.0, 100)], []).window(0.01, 1.0, lambda: None)


def test_an_epoch_of_hivemind_is_over_once_and_the_tokens_of_all_count() -> None:
    told = [(1.0, 5, 10), (1.1, 4, 20), (2.0, 6, 40), (1.2, 5, 80), (4.0, 6, 160), (5.0, 8, 320)]
    averages = [{"at": at, "epoch": epoch, "tokens": tokens} for at, epoch, tokens in told]
    assert rounds(averages) == [Round(5, 1.0, 10), Round(6, 2.0, 150), Round(8, 5.0, 630)]
    assert rounds([]) == []


def test_a_peer_that_was_killed_in_a_line_has_told_those_before_it(tmp_path: Path) -> None:
    reports, log = tmp_path / "0.jsonl", tmp_path / "0.log"
    with Children(grace=0.0) as children:
        peer = Peer(children.start(["true"], log), reports, log)
        assert (peer.address, peer.averages()) == ("", [])
        average = {"at": 1.5, "epoch": 3, "tokens": 256}
        reports.write_text(f'{{"address": "/ip4/1"}}\n{json.dumps(average)}\n{{"at": 2.')
        assert (peer.address, peer.averages()) == ("/ip4/1", [average])
