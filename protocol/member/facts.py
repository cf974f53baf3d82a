"""What a member knows of a run before it has met anybody."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.protocol.averaging.policy import Base, Policy
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.log.register import MAX_VOTERS, first_state, founded
from shoal.protocol.log.trust import Crash, Trust
from shoal.protocol.member.kept import FOUNDING_LIFE
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.log import Register

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
    has_results: bool = True  # whether the log decides rounds; else its voters see who goes on, and when all is over

    def register(self) -> Register:
        """The register before the first entry."""
        first = first_state(PART, self.origin.round, self.origin.root, self.origin.history)
        return founded(
            self.run,
            self.founder,
            FOUNDING_LIFE,
            stewards=self.stewards,
            most_voters=self.most_voters,
            rounds_to_vote=self.rounds_to_vote if self.has_results else 0,
            last_round=self.last_round,
            parts=(first,) if self.has_results else (),
            part_count=int(self.has_results),
        )
