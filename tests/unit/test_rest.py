"""The rest: what is kept of a run while all its members are stopped."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.wire import Message, decode, encode
from shoal.protocol.messages.rounds import Fetched
from shoal.protocol.messages.transfer import Chain
from shoal.protocol.rounds.agreement.certificate import mask_of
from shoal.protocol.rounds.agreement.voting import NO_BALLOT, VoteState
from shoal.protocol.rounds.allreduce.shelf import Decision, Shelf
from shoal.protocol.rounds.rest import Rest, draft_of, put_back
from tests.unit.rounds_kit import BASE, CHUNKS, PEERS, ROUND, C, certificate, leave, value, vote

MEANS = tuple(b"mean %d" % chunk for chunk in range(CHUNKS))
DECISION = Decision(certificate(), value().chunks, MEANS)
DRAFT = tuple(Fetched(ROUND + 1, 0, chunk, mask_of(PEERS, PEERS), payload) for chunk, payload in enumerate(MEANS))
REST = Rest(BASE.round, BASE.root, (certificate(),), (DECISION,), (leave(C, NO_BALLOT),), DRAFT)


def on_disk(rest: Rest) -> list[Message]:
    return [decode(encode(message)) for message in rest.messages(0)]


def test_it_is_the_same_when_it_was_written_and_read() -> None:
    again = Rest.of(on_disk(REST))
    assert again == REST
    assert again.origin == (BASE.round, BASE.root)
    assert again.newest == ROUND
    assert again.made_by is None  # the run began with that state
    assert dataclasses.replace(again, round=ROUND).made_by == value().proposal


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda words: words[1:], "of which state"),
        (lambda words: [word for word in words if not isinstance(word, Fetched)], "the bytes of round"),
        (lambda words: [*words, vote(C, value())], "holds a Prepared"),
        (lambda words: [*words, Chain(0, (certificate(),), 2)], "has a gap"),
        (lambda words: [dataclasses.replace(words[0], round=ROUND + 1), *words[1:]], f"not lead to round {ROUND + 1}"),
        (lambda words: [dataclasses.replace(words[0], round=BASE.round - 1), *words[1:]], "not lead to round"),
    ],
)
def test_one_that_is_not_whole_is_refused(spoil: object, reason: str) -> None:
    with pytest.raises(LocalError, match=reason):
        Rest.of(spoil(on_disk(REST)))  # type: ignore[operator]


def test_the_bytes_of_a_vote_are_held_again_in_its_round() -> None:
    voted = VoteState(ROUND, 0, 1, value().ballot, value())
    shelf = Shelf()
    assert draft_of(shelf, None) == draft_of(shelf, VoteState(ROUND, 0)) == draft_of(shelf, voted) == ()
    for chunk, (ref, payload) in enumerate(zip(value().chunks, MEANS, strict=True)):
        shelf.put(chunk, ref.hash, ref.mask, payload)
    draft = draft_of(shelf, voted)
    assert [each.payload for each in draft] == list(MEANS)

    back = Shelf()
    assert put_back(draft, ROUND - 1, back) == draft
    assert put_back(draft, ROUND + 1, back) == ()
    assert len(back.missing(value().chunks)) == CHUNKS
    assert put_back(draft, ROUND, back) == draft
    assert back.collect(value().chunks) == MEANS
