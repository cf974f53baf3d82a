"""What a member knows of a run before it has met anybody."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.protocol.averaging.policy import Base, Policy
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.log.register import MAX_VOTERS, first_state, founded
from shoal.protocol.log.trust import Crash, Trust
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.log import Register

FOUNDING_LIFE = 1  # that of the founder's first vote file: everybody knows it from the run's id
PART = 0  # a run is one chain of rounds; which numbers a round of fragments is about, the method says


@dataclass(frozen=True, slots=True)
class RunFacts:
    """All of it follows from the manifest, its author's signature, and the link by which we came."""

    run: Digest
    founder: PeerId
    origin: Base  # what its first round builds on; the manifest says so, or the seed
    policy: Policy
    last_round: int = 0  # 0: the run has none
    stewards: tuple[PeerId, ...] = ()
    most_voters: int = MAX_VOTERS
    rounds_to_vote: int = 1
    trust: Trust = field(default_factory=Crash)
    continue_after: float | None = None  # seconds without a quorum, after which members go on without it; None: never
    anchor: Anchor | None = None  # an entry that its log has, as we were told with the run's link
    has_replicas: bool = False  # until the last round, which alone the log decides; who goes on, its voters see

    @property
    def decided_from(self) -> Base | None:
        """What the first round builds on that the log decides; None: it decides none.

        Replicas are not alike, so the last round builds on nothing that has a root.
        """
        if not self.has_replicas:
            return self.origin
        return Base(self.last_round - 1, 0, self.origin.history, NO_DIGEST) if self.last_round else None

    def register(self) -> Register:
        """The register before the first entry."""
        base = self.decided_from
        parts = (first_state(PART, base.round, base.root, base.history),) if base is not None else ()
        return founded(
            self.run,
            self.founder,
            FOUNDING_LIFE,
            stewards=self.stewards,
            most_voters=self.most_voters,
            rounds_to_vote=self.rounds_to_vote if not self.has_replicas else 0,
            last_round=self.last_round,
            parts=parts,
            part_count=len(parts),
        )
