"""The chain of certificates."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest
from shoal.protocol.messages.rounds import Vote
from shoal.protocol.rounds.agreement.history import History
from tests.unit.rounds_kit import BASE, PEERS, SIGNER, B, certificate, value


def _history() -> History:
    """The chain of a run whose first round is that of the kit."""
    return History(BASE, SIGNER)


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
    first, root = certificate(), Digest(bytes([7]) * 32)
    history.append(first)
    assert history.certified_root(BASE.round + 1) is None
    later = dataclasses.replace(
        first, proposal=dataclasses.replace(first.proposal, round=BASE.round + 2, base_root=root)
    )
    history.append(later)
    assert history.certified_root(BASE.round + 1) == root
    assert history.certified_root(BASE.round + 2) is None


def test_the_first_state_is_certified_by_the_manifest_and_none_before_it() -> None:
    history = _history()
    assert history.certified_root(BASE.round) == BASE.root
    assert history.certified_root(BASE.round - 1) is None
    assert history.base(BASE.round, BASE.root) == BASE


def test_links_are_counted_from_the_first_round_of_the_run() -> None:
    history = _history()
    history.extend([certificate()], B)
    assert history.after(0) == history.after(BASE.round) == (certificate(),)
    assert history.after(BASE.round + 1) == ()
