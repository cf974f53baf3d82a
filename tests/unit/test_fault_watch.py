"""A node's fault strikes in its round and stage, in the role that it is for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from shoal.node.base.fault_injection import Fault, FaultTrigger
from shoal.node.run.fault_watch import FaultWatch
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution, Made, Mean
from shoal.protocol.messages.log import Phase, Subject, Vote
from shoal.protocol.messages.replicas import Chunk

ME, OTHER, THIRD = PeerId("me"), PeerId("other"), PeerId("third")
MADE = Made(NO_DIGEST, b"\x03", 0, OTHER, 1, b"")
VOTE = Vote(Subject(NO_DIGEST, 9, 0, Phase.COMMIT, *[NO_DIGEST] * 5), ME, 1, b"")


def rounds(round: int, owners: Sequence[PeerId] = (ME, OTHER, THIRD), phase: str = "reducing") -> Rounds:
    """In a round of three."""
    exchange = SimpleNamespace(
        round=round, roster=(ME, OTHER, THIRD), owners=lambda: owners, owns_any=lambda: ME in owners
    )
    state = SimpleNamespace(round=round - 1)
    return cast(Rounds, SimpleNamespace(round=SimpleNamespace(exchange=exchange), phase=phase, state=state))


class Watched:
    """A fault's watch, and what was said when it struck."""

    def __init__(self, text: str) -> None:
        self.said: list[str] = []
        self.watch = FaultWatch(ME, FaultTrigger(Fault.parse(text), self.said.append))

    def contributes(self, round: int, chunk: int, known: Rounds | None = None, is_proposer: bool = False) -> None:
        message = Contribution(0, round, chunk, 0, 5, NO_DIGEST, b"")
        self.watch.sent(OTHER, message, known or rounds(round), is_proposer)

    def receives(self, message: Message, known: Rounds) -> None:
        self.watch.received(message, known, False)


def mean(round: int, chunk: int) -> Mean:
    return Mean(0, round, chunk, MADE, b"")


def test_in_the_scatter_it_strikes_between_two_contributions() -> None:
    watched = Watched("kill round=7 role=owner")
    watched.contributes(6, 1)
    assert watched.said == []
    watched.contributes(7, 1)
    assert watched.said == ["1 of 2 chunks sent in round 7"]


def test_a_fault_of_the_proposer_spares_whoever_takes_over_in_the_middle_of_a_round() -> None:
    watched = Watched("kill round=7 share=0.9 role=proposer")
    watched.contributes(7, 1, is_proposer=False)
    watched.contributes(7, 2, is_proposer=True)
    assert watched.said == []


def test_a_fault_of_the_proposer_spares_whoever_takes_over_before_it_has_sent_anything() -> None:
    watched = Watched("kill round=7 role=proposer")
    watched.receives(mean(6, 1), rounds(7))
    watched.contributes(7, 1, is_proposer=True)
    assert watched.said == []


def test_in_the_gather_an_owner_has_sent_some_of_its_means() -> None:
    watched = Watched("kill round=7 when=gather role=owner")
    watched.contributes(7, 1)
    watched.receives(mean(7, 1), rounds(7))
    watched.watch.sent(OTHER, mean(6, 0), rounds(7), False)
    assert watched.said == []
    watched.watch.sent(OTHER, mean(7, 0), rounds(7), False)
    assert watched.said == ["1 of 2 means moved in round 7"]


def test_in_the_gather_who_owns_nothing_has_some_of_the_means() -> None:
    watched = Watched("stop round=7 when=gather role=contributor")
    known = rounds(7, owners=(OTHER, OTHER, THIRD, THIRD))
    watched.receives(mean(7, 0), known)  # before it has begun to contribute
    watched.contributes(7, 0, known)
    watched.receives(mean(7, 1), known)
    watched.receives(mean(7, 1), known)
    assert watched.said == []
    watched.receives(mean(7, 2), known)
    assert watched.said == ["2 of 4 means moved in round 7"]


def test_in_the_decision_it_is_about_to_vote_on_a_result() -> None:
    watched = Watched("kill round=7 when=decision role=owner")
    watched.contributes(7, 1)
    watched.watch.leaves(VOTE, rounds(7))  # on another entry, in the middle of the exchange
    assert watched.said == []
    watched.watch.leaves(VOTE, rounds(7, phase="deciding"))
    assert watched.said == ["in the decision of round 7"]


def test_in_the_decision_it_strikes_also_if_the_votes_of_others_were_enough() -> None:
    watched = Watched("kill round=7 when=decision role=proposer")
    watched.contributes(7, 1, is_proposer=True)
    state = SimpleNamespace(round=7)
    watched.receives(VOTE, cast(Rounds, SimpleNamespace(round=None, phase="applying", state=state)))
    assert watched.said == ["in the decision of round 7"]


def test_of_a_replica_it_strikes_between_two_chunks() -> None:
    watched = Watched("kill round=7")
    watched.watch.exchanged(Chunk(7, 3, 0, b""), 3)
    assert watched.said == []
    watched.watch.exchanged(Chunk(7, 3, 1, b""), 3)
    assert watched.said == ["2 of 3 chunks sent in round 7"]
