"""The facts of a run that follow from its manifest and the node's disk alone, for the cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.node.manifest.manifest import Manifest
from shoal.protocol.averaging.policy import Base, Policy
from shoal.protocol.base.ids import Digest, PeerId, RunId, digest
from shoal.protocol.log.trust import Crash, Trust
from shoal.protocol.member.facts import RunFacts
from shoal.protocol.membership.view import View
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.tensors.compression import codec

if TYPE_CHECKING:
    from shoal.node.training.checkpoint.read import Checkpoint

WEIGHED = 1 << 16  # values, by whose encoded sizes the payloads of the two codecs are compared
TRUSTS: dict[str, Trust] = {"crash": Crash()}
SLACK = 60.0  # seconds at the pace `steps`: for a worker on a busy machine, or one that is restarted


def run_facts(
    manifest: Manifest,
    run: RunId,
    author: PeerId,
    *,
    seeded: Digest,
    chunks: tuple[int, ...],
    anchor: Anchor | None = None,
) -> RunFacts:
    """The facts of a run; `seeded` is the root of the state that follows from the manifest's seed."""
    origin, trust = first_base(manifest, seeded), manifest.trust
    return RunFacts(
        Digest(run),
        author,
        origin,
        policy_of(manifest, chunks),
        manifest.rounds.last or 0,
        stewards=tuple(map(PeerId, trust.stewards)),
        most_voters=trust.voters,
        trust=trust_of(manifest),
        continue_after=trust.patience,
        anchor=anchor,
    )


def trust_of(manifest: Manifest) -> Trust:
    """What its voters are prepared for."""
    return TRUSTS[manifest.trust.faults]


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
    """The history digest before the run's first round, alike in all runs of a manifest: then equal bits say so."""
    origin = manifest.origin
    return digest("genesis", manifest.digest) if origin is None else Digest(bytes.fromhex(origin.history))


def first_base(manifest: Manifest, seeded: Digest) -> Base:
    """What the run's first round builds on: the manifest's origin, or the state of root `seeded`."""
    origin = manifest.origin
    if origin is None:
        return Base(0, 0, first_history(manifest), seeded)
    return Base(origin.round, 0, first_history(manifest), Digest(bytes.fromhex(origin.root)))


def training_now(view: View) -> int:
    """How many members train: we, and the living ones whose status says so."""
    others = (view.status(peer) for peer in view.alive())
    return 1 + sum(status is not None and status.trains for status in others)


def samples_before(manifest: Manifest, checkpoint: Checkpoint | None = None) -> int:
    """Tokens behind the state that a run begins with, or that of `checkpoint`."""
    if checkpoint is not None:
        return checkpoint.about.samples
    return manifest.origin.samples if manifest.origin else 0
