"""After the last round: what each live peer holds, how good it is, and what it is compared with."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

from shoal.node.client import Answer
from shoal.node.up.baseline_run import train_references
from shoal.node.up.jobs import Jobs
from shoal.node.up.peers import LocalPeer
from shoal.node.up.plan import Plan
from shoal.node.up.replica_end import Replicas, measure
from shoal.node.up.swarm import Swarm
from shoal.node.up.verdict import Finding, Outcome, PeerEnd


async def save_states(plan: Plan, swarm: Swarm) -> tuple[PeerEnd, ...]:
    """Let every live peer write its state, and read the files back: what counts is what is in them.

    Where a worker's weights are others than the state that all agree on, they are written, too.
    """
    saved = await asyncio.gather(*(_save(peer, swarm.run) for peer in swarm.live))
    if plan.manifest.method.has_own_weights:
        await asyncio.gather(*(_save_own(peer, swarm.run) for peer in swarm.live))
    answers = dict(zip([peer.name for peer in swarm.live], saved, strict=True))
    return tuple(_end(peer, plan, swarm, answers.get(peer.name)) for peer in swarm.peers)


async def find(plan: Plan, swarm: Swarm, ends: tuple[PeerEnd, ...], jobs: Jobs, baseline: bool) -> Finding:
    """Measure the state of the first peer that is left, and all replicas; train the references if they are wanted.

    Where replicas are all there is, their mean takes the place of the state.
    """
    device = plan.device_of(plan.peers[0])
    saved = [peer for peer, end in zip(swarm.peers, ends, strict=True) if end.file_hash]
    swarm.note("validating", "measuring the validation loss before and after")
    initial, (final, replicas) = await asyncio.gather(
        jobs.run("validate-initial", "validate", plan.manifest_file, "initial", device, *plan.data),
        _measure(plan, jobs, device, saved),
    )
    references = None
    if baseline:
        references = await train_references(plan, jobs, swarm.note)
    tokens = max(int(peer.row.get("samples") or 0) for peer in swarm.peers)
    return Finding(
        plan,
        swarm.ledger,
        ends,
        final["parameters"],
        tokens,
        initial["loss"],
        final["loss"],
        references,
        final["sample"],
        replicas,
    )


async def _measure(plan: Plan, jobs: Jobs, device: str, saved: list[LocalPeer]) -> tuple[Answer, Replicas | None]:
    """The answer of `validate` for the play's result, and what its replicas are worth, if there are such."""
    if plan.manifest.method.has_replicas:
        return await measure(plan, jobs, device, [peer.state_file for peer in saved])
    state = jobs.run("validate-final", "validate", plan.manifest_file, saved[0].state_file, device, *plan.data)
    if not plan.manifest.method.has_own_weights:
        return await state, None
    agreed, (_, replicas) = await asyncio.gather(state, measure(plan, jobs, device, [peer.own_file for peer in saved]))
    return agreed, replace(replicas, agreed=agreed["loss"])


async def _save(peer: LocalPeer, run: str) -> Answer:
    return await peer.ask(lambda client: client.save_state(run, str(peer.state_file)))


async def _save_own(peer: LocalPeer, run: str) -> Answer:
    return await peer.ask(lambda client: client.save_state(run, str(peer.own_file), own=True))


def _end(peer: LocalPeer, plan: Plan, swarm: Swarm, saved: Answer | None) -> PeerEnd:
    if saved is None:
        return PeerEnd(peer.name, "killed", peer.round, str(peer.row.get("root", "")), device=peer.device)
    file_hash = hashlib.sha256(peer.state_file.read_bytes()).hexdigest()
    came = peer.name == plan.newcomer
    first = swarm.ledger.first_round_of(peer.name) if came else None
    outcome: Outcome = "joined" if came else "finished"
    return PeerEnd(peer.name, outcome, saved["round"], saved["root"], file_hash, first, peer.device)
