"""The facts of a run that follow from its manifest and the node's disk alone, for the cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.node.manifest.manifest import Manifest
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.member.member import PART, RunFacts
from shoal.protocol.messages.rounds import VoteRecord
from shoal.protocol.rounds.agreement.certificate import genesis
from shoal.protocol.rounds.agreement.roster import Base, Policy
from shoal.protocol.rounds.matchmaking.context import View
from shoal.protocol.tensors.compression import codec

if TYPE_CHECKING:
    from shoal.node.training.checkpoint.read import Checkpoint

WEIGHED = 1 << 16  # values, by whose encoded sizes the payloads of the two codecs are compared
SLACK = 60.0  # seconds at the pace `steps`: for a worker on a busy machine, or one that is restarted


def run_facts(
    manifest: Manifest, author: PeerId, *, seeded: Digest, chunks: tuple[int, ...], holds_origin: bool
) -> RunFacts:
    """The facts of a run; `seeded` is the root of the state that follows from the manifest's seed."""
    return RunFacts(first_base(manifest, author, seeded), policy_of(manifest, chunks), holds_origin)


def policy_of(manifest: Manifest, chunks: tuple[int, ...]) -> Policy:
    """The rules, agreed by all members, for which members are in a round and when it begins."""
    rounds = manifest.rounds
    return Policy(
        rounds.min_members,
        rounds.start_members,
        rounds.max_group,
        rounds.max_weight,
        chunks,
        manifest.first_round,
        SLACK if rounds.pace == "steps" else 0.0,
        scatter=codec(manifest.codec.scatter).bytes_for(WEIGHED),
        gather=codec(manifest.codec.gather).bytes_for(WEIGHED),
    )


def first_history(manifest: Manifest) -> Digest:
    """The history digest before the run's first round."""
    origin = manifest.origin
    return genesis(manifest.run_id, PART) if origin is None else Digest(bytes.fromhex(origin.history))


def first_base(manifest: Manifest, author: PeerId, seeded: Digest) -> Base:
    """What the run's first round builds on: the manifest's origin, or the state of root `seeded`."""
    origin = manifest.origin
    if origin is None:
        return Base(0, first_history(manifest), seeded, (author,))
    return Base(origin.round, first_history(manifest), Digest(bytes.fromhex(origin.root)), (author,))


def last_vote(records: Mapping[str, Message]) -> int:
    """The last round in which this node has voted, by its records from before a restart; 0 if there is none."""
    vote = records.get(f"vote-{PART}")
    return vote.round if isinstance(vote, VoteRecord) else 0


def training_now(view: View) -> int:
    """How many members train: we, and the living ones whose status says so."""
    others = (view.status(peer) for peer in view.alive())
    return 1 + sum(status is not None and status.trains for status in others)


def samples_before(manifest: Manifest, checkpoint: Checkpoint | None = None) -> int:
    """Tokens behind the state that a run begins with, or that of `checkpoint`."""
    if checkpoint is not None:
        return checkpoint.about.samples
    return manifest.origin.samples if manifest.origin else 0
