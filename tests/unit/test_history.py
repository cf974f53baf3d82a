"""The chain of certificates."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.errors import RemoteError
from shoal.protocol.history import History
from shoal.protocol.ids import NO_DIGEST
from shoal.protocol.messages.rounds import Vote
from shoal.protocol.roster import Base
from tests.unit.rounds_kit import BASE, PEERS, SIGNER, B, certificate, value


def _history() -> History:
    """A chain that stands before the round of the kit."""
    made = History(BASE, SIGNER)
    made._links = [certificate()] * BASE.round  # earlier links are of no interest here
    return made


def test_a_link_names_the_voters_of_the_next() -> None:
    history = _history()
    history.extend([certificate()], B)
    assert history.newest == BASE.round + 1
    assert history.base(BASE.round + 1, NO_DIGEST).voters == value().proposal.voters


def test_a_known_link_is_passed_over_and_a_gap_named() -> None:
    history = _history()
    history.extend([certificate()], B)
    history.extend([certificate()], B)
    assert history.newest == BASE.round + 1
    proof = certificate()
    later = dataclasses.replace(proof, proposal=dataclasses.replace(proof.proposal, round=BASE.round + 3))
    with pytest.raises(RemoteError, match="gap") as caught:
        history.extend([later], B)
    assert caught.value.peer == B


def test_a_forged_link_is_refused() -> None:
    history = _history()
    forged = dataclasses.replace(certificate(), votes=tuple(Vote(peer, b"") for peer in PEERS))
    with pytest.raises(RemoteError, match="forged"):
        history.extend([forged], B)
    assert history.newest == BASE.round


def test_a_state_is_certified_by_the_round_that_builds_on_it() -> None:
    history = _history()
    assert history.certified_root(BASE.round) is None
    history.extend([certificate()], B)
    assert history.certified_root(BASE.round) == BASE.root
    assert history.certified_root(BASE.round + 1) is None


def test_before_the_first_round_there_is_the_creator() -> None:
    genesis = Base(0, BASE.history, BASE.root, PEERS[:1])
    assert History(genesis, SIGNER).base(0, BASE.root) == genesis
