"""From the founder to now without the entries between: headers, each signed by some of those whom one trusts already.

Whoever joins knows the run's first voters, or later ones from an earlier visit. A header leads from voters that are
trusted to those who decided its entry, and to those whom that has made voters, if enough of all have signed it: of the
trusted ones so many that one of them is honest, of the others a quorum. So a voter leads to those whom it has made
voters, if it dies then. A joiner reads a header for each few changes of voters, and no entry; the last header
names the root of the register, and with the register it goes on as everybody does. This is the skipping verification
of light clients, as in Tendermint (Buchman, Kwon, Milosevic, 2018).

Where peers do not lie a header may lead over the beginning of a branch, too: a voter goes on in its life where it has
checked how the branch was founded, and never on two branches (who leaves one begins another life).
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import check_signature
from shoal.protocol.log.register import Rules, electorate_root
from shoal.protocol.messages.log import Electorate, Header, Vote


def follow(branch: Digest | None, trusted: Electorate, header: Header, rules: Rules, shown_by: PeerId) -> Electorate:
    """Those who decide the entry after that of `header`; RemoteError unless the trusted voters vouch for it.

    It is one of `branch`; None: of this branch or a later one, for whose founding they vouch as well.
    """
    subject, shown, after = header.certificate.subject, header.electorate, header.after or header.electorate
    roots = electorate_root(subject.branch, shown), electorate_root(subject.branch, after)
    if branch not in (None, subject.branch) or (subject.voters, subject.voters_after) != roots:
        raise RemoteError("shows a header with other voters than it names, or of another branch", shown_by)
    if subject.phase != rules.trust.phases[-1] or shown.since < trusted.since:
        raise RemoteError("shows a header that decides nothing, or leads back", shown_by)
    signed = [proof.peer for proof in header.certificate.proofs]
    if len(set(signed)) != len(signed) or not vouches(trusted, header):
        raise RemoteError("shows a header that too few of the voters before have signed", shown_by)
    for each in (shown, after):
        if not rules.trust.is_quorum(signed, [voter.peer for voter in each.voters], each.faults):
            raise RemoteError("shows a header without a quorum", shown_by)
    lives = {voter.peer: voter.life for voter in (*after.voters, *shown.voters)}
    for proof in header.certificate.proofs:
        if proof.peer not in lives:
            raise RemoteError("shows a header that somebody without a vote has signed", shown_by)
        vote = Vote(subject, proof.peer, lives[proof.peer], proof.signature)
        check_signature(vote, proof.peer, rules.signer, shown_by)
    return after


def vouches(trusted: Electorate, header: Header) -> bool:
    """Whether at least one honest voter of `trusted`, in the life in which it is trusted, has signed `header`."""
    signed = {proof.peer for proof in header.certificate.proofs}
    return sum(voter.peer in signed for voter in trusted.voters if voter in header.electorate.voters) > trusted.faults


def fewest(trusted: Electorate, headers: Sequence[Header]) -> list[Header]:
    """As few of a donor's headers, oldest first, as lead from `trusted` to the last of them.

    Always the farthest one that can be reached. Empty if none leads on.
    """
    chosen: list[Header] = []
    here, at = trusted, -1
    while at < len(headers) - 1:
        reached = [place for place in range(at + 1, len(headers)) if vouches(here, headers[place])]
        if not reached:
            return []
        at = reached[-1]
        here = headers[at].after or headers[at].electorate
        chosen.append(headers[at])
    return chosen


def follow_all(
    branch: Digest | None, trusted: Electorate, headers: Sequence[Header], rules: Rules, shown_by: PeerId
) -> tuple[int, Digest]:
    """Number of the last header's entry, and the root of the register after it; RemoteError at the first bad header.

    `branch`: see `follow`.
    """
    if not headers:
        raise RemoteError("shows no header", shown_by)
    for header in headers:
        trusted = follow(branch, trusted, header, rules, shown_by)
    last = headers[-1].certificate.subject
    return last.number, last.register
