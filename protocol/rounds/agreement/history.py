"""The chain of certified rounds: who decided what on what, from the run's creator to now.

A joiner trusts the creator named by the manifest and nobody else: each certificate is signed by a quorum of the
voters whom the one before it names, so the whole chain is checked link by link. A state is certified by the round
built on it: that round's proposal names its root. The state that the run begins with is certified by its manifest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.messages.rounds import Certificate
from shoal.protocol.rounds.agreement.certificate import check_certificate, next_base
from shoal.protocol.rounds.agreement.roster import Base

LINKS_PER_MESSAGE = 64


class History:
    """One part's chain, as far as this member has checked it."""

    def __init__(self, origin: Base, signer: Signer) -> None:
        self.origin = origin  # what the run's first round builds on
        self._signer = signer
        self._links: list[Certificate] = []
        self._tip = origin

    @property
    def newest(self) -> int:
        """The last certified round."""
        return self._tip.round

    @property
    def links(self) -> tuple[Certificate, ...]:
        """All of them, oldest first."""
        return tuple(self._links)

    def after(self, round: int) -> tuple[Certificate, ...]:
        """Some links after `round`, oldest first."""
        start = max(0, round - self.origin.round)
        return tuple(self._links[start : start + LINKS_PER_MESSAGE])

    def append(self, certificate: Certificate) -> None:
        """A link that was checked already, when its round committed here."""
        if certificate.proposal.round == self.newest + 1:
            self._links.append(certificate)
            self._tip = next_base(certificate.proposal, NO_DIGEST)

    def extend(self, certificates: Iterable[Certificate], sender: PeerId) -> None:
        """Check links from a peer and add those that are new; RemoteError at the first bad one."""
        for certificate in certificates:
            if certificate.proposal.round <= self.newest:
                continue
            if certificate.proposal.round != self.newest + 1:
                raise RemoteError("sent a chain with a gap", sender)
            check_certificate(certificate, self._tip, self._signer)
            self.append(certificate)

    def base(self, round: int, root: Digest) -> Base:
        """What the round after `round` builds on, given the state's root."""
        if round == self.origin.round:
            return dataclasses.replace(self.origin, root=root)
        return next_base(self._links[round - self.origin.round - 1].proposal, root)

    def samples(self, round: int) -> int:
        """Tokens behind the state after `round` that were added since the origin."""
        return sum(link.proposal.samples for link in self._links[: round - self.origin.round])

    def certified_root(self, round: int) -> Digest | None:
        """The state root after `round`, if the manifest or the next round has certified it."""
        index = round - self.origin.round
        if index == 0:
            return self.origin.root
        return self._links[index].proposal.base_root if 0 < index < len(self._links) else None

    def certifies(self, round: int, root: Digest) -> bool:
        """Whether the state after `round` is known to have this root."""
        return self.certified_root(round) == root
