"""What voters sign, and what follows from many of their signatures: pure functions over votes and certificates."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import check_signature
from shoal.protocol.log.register import (
    Rules,
    after,
    entry_digest,
    has_quorum,
    is_voter,
    member_of,
    register_root,
    voters_root,
)
from shoal.protocol.messages.log import (
    Certificate,
    ChangeView,
    Entry,
    Lock,
    Phase,
    Proof,
    Register,
    Subject,
    Vote,
)


def subject_of(register: Register, changed: Register, entry: Entry, view: int, phase: Phase) -> Subject:
    """What is voted on, where `changed` is the register after `entry`."""
    return Subject(
        branch=register.branch,
        number=entry.number,
        view=view,
        phase=phase,
        before=entry.before,
        entry=entry_digest(entry),
        register=register_root(changed),
        voters=voters_root(register),
        voters_after=voters_root(changed),
    )


def electorate(register: Register, changed: Register) -> tuple[PeerId, ...]:
    """Who votes on the entry between the two: the voters before it, then those that it adds."""
    return (*register.voters, *(voter for voter in changed.voters if voter not in register.voters))


def decides(voted: Collection[PeerId], register: Register, changed: Register, rules: Rules) -> bool:
    """Whether these votes on one subject are enough: a quorum of the voters before, and one of those after.

    The first makes the entry the only one of its number. The second holds it, so that they can go on. Nobody votes on
    the founding of a branch.
    """
    if is_founding(register, changed):
        return True
    return all(has_quorum(each, voted, rules) for each in (register, changed))


def is_founding(register: Register, changed: Register) -> bool:
    """Whether the entry between the two founds a branch: it holds the statements that prove it."""
    return changed.branch != register.branch


def votes_on(subject: Subject, votes: Iterable[Vote]) -> list[Vote]:
    """Those of `votes` that are on just this subject, its view included.

    Votes for one entry in two views are no majority for it: between the two its voters may have let go of it.
    """
    return [vote for vote in votes if vote.subject == subject]


def certificate_of(subject: Subject, votes: Iterable[Vote]) -> Certificate:
    """The proof that `votes` on `subject` make."""
    proofs = sorted((vote.peer, vote.signature) for vote in votes)
    return Certificate(subject, tuple(Proof(peer, signature) for peer, signature in proofs))


def check_certificate(
    certificate: Certificate, entry: Entry, phase: Phase, register: Register, rules: Rules, shown_by: PeerId
) -> Register:
    """The register after `entry`; RemoteError unless `certificate` proves that enough voted for it in `phase`."""
    changed = after(register, entry, rules, shown_by)
    subject, voted = certificate.subject, [proof.peer for proof in certificate.proofs]
    view = 0 if is_founding(register, changed) else subject.view
    if subject != subject_of(register, changed, entry, view, phase):
        raise RemoteError("shows a certificate of another entry", shown_by)
    if voted and is_founding(register, changed):
        raise RemoteError("shows votes for the founding of a branch, on which nobody votes", shown_by)
    if len(set(voted)) != len(voted) or not set(voted).issubset(electorate(register, changed)):
        raise RemoteError("shows a certificate that counts somebody twice, or without a vote", shown_by)
    if not decides(set(voted), register, changed, rules):
        raise RemoteError("shows a certificate without a quorum", shown_by)
    for proof in certificate.proofs:
        vote = Vote(subject, proof.peer, _life(register, changed, proof.peer), proof.signature)
        check_signature(vote, proof.peer, rules.signer, shown_by)
    return changed


def check_change(change: ChangeView, register: Register, rules: Rules, shown_by: PeerId) -> None:
    """RemoteError unless one who votes after `register` asks for a view, with a lock that can be."""
    if (change.branch, change.voters) != (register.branch, voters_root(register)):
        raise RemoteError("asks other voters for another view", shown_by)
    if not is_voter(register, change.peer, change.life):
        raise RemoteError("asks for another view without a vote", shown_by)
    check_signature(change, change.peer, rules.signer, shown_by)
    if change.lock is not None and change.number == register.number + 1:
        _check_lock(change.lock, change.view, register, rules, shown_by)


def _check_lock(lock: Lock, view: int, register: Register, rules: Rules, shown_by: PeerId) -> None:
    if lock.view >= view:
        raise RemoteError("shows a lock of a view that is still to come", shown_by)
    locking = rules.trust.phases[:-1]
    if not locking:
        after(register, lock.entry, rules, shown_by)
    elif lock.certificate is None or lock.certificate.subject.view != lock.view:
        raise RemoteError("shows a lock without its certificate", shown_by)
    else:
        check_certificate(lock.certificate, lock.entry, locking[-1], register, rules, shown_by)


def _life(register: Register, changed: Register, peer: PeerId) -> int:
    return member_of(register if peer in register.voters else changed, peer).life
