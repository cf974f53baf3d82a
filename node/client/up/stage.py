"""The play itself: start the founding peers, let a newcomer join, and wait until the last round is applied.

The victim is not killed here: its process is started with a fault (fault_injection.py), and `Swarm.watch` notices its
death.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from shoal.node.api.present import is_terminal
from shoal.node.base.fault_injection import Fault
from shoal.node.base.toml import dump
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.up.plan import Plan, to_toml
from shoal.node.client.up.processes import Children
from shoal.node.client.up.swarm import Swarm
from shoal.protocol.base.errors import ShoalError, TransportError
from shoal.protocol.base.ids import short

JOIN_WITHIN = 60.0  # seconds in which a peer that just started must find the run
RETRY = 0.5
HEAD_START = 3  # the newcomer's process is started so many rounds before its round: importing takes seconds
LOADING = 1  # it joins so many rounds before its round: as soon as the one before is committed


async def play(plan: Plan, swarm: Swarm, children: Children) -> None:
    """Run the swarm until every live peer has applied the last round; raises the error that ends it before."""
    try:
        async with asyncio.TaskGroup() as tasks:
            stage = _Stage(plan, swarm, children, tasks)
            with swarm.waiting("starting the nodes and the run"):
                await stage.gather()
            tasks.create_task(stage.show_first_round())
            await stage.bring_newcomer()
            await swarm.until(lambda: all(peer.gone or peer.round >= plan.rounds for peer in swarm.peers))
            await swarm.collect()
            stage.close()
    except BaseExceptionGroup as group:
        raise _cause(group) from None


@dataclass(slots=True)
class _Stage:
    plan: Plan
    swarm: Swarm
    children: Children
    tasks: asyncio.TaskGroup
    watchers: list[asyncio.Task[None]] = field(default_factory=list)

    async def gather(self) -> None:
        """Start all founding peers, and bring them into the run."""
        plan, swarm = self.plan, self.swarm
        self.watchers.append(self.tasks.create_task(swarm.guard()))
        founder, *others = [LocalPeer(name, plan.out) for name in plan.peers]
        await self._start([founder], None)
        if is_terminal():
            page = await founder.ask(lambda client: client.page(with_login=True))
            swarm.say(f"watch it in a browser: {page}")
        await self._start(others, founder.addresses[0])
        own = [path] if (path := plan.checkpoint_of(founder.name)) else []
        text, nonce = to_toml(plan.manifest), plan.nonce
        swarm.run = (await founder.ask(lambda client: client.create_run(text, True, own, nonce)))["run"]
        if not plan.manifest.model.is_complete:  # the founder has filled in the tensors of a model of transformers
            whole = await founder.ask(lambda client: client.run_details(swarm.run))
            plan.manifest_file.write_text(dump(whole["manifest"]), encoding="utf-8")
        swarm.note("created", f"{founder.name} created the run {swarm.run[:8]}", run=swarm.run)
        await asyncio.gather(*map(self._join, others))
        first = plan.manifest.first_round
        swarm.note("joined", f"all {len(plan.peers)} peers are in the run: round {first} starts")

    async def bring_newcomer(self) -> None:
        """Start a fresh peer, and let it join so early that it is in the run when its round begins."""
        plan, swarm = self.plan, self.swarm
        if plan.newcomer is None or plan.join_at is None:
            return
        join_at, newcomer = plan.join_at, LocalPeer(plan.newcomer, plan.out)
        await swarm.until(lambda: swarm.round >= join_at - HEAD_START)
        await self._start([newcomer], swarm.live[0].addresses[0])
        await swarm.until(lambda: swarm.round >= join_at - LOADING)
        await self._join(newcomer)
        swarm.note("newcomer", f"{newcomer.name} joined the run at round {swarm.round + 1}", peer=newcomer.name)
        await swarm.until(lambda: newcomer.round > 0)
        swarm.note(
            "synced",
            f"{newcomer.name} downloaded the state after round {newcomer.round} from the others",
            peer=newcomer.name,
            round=newcomer.round,
        )

    async def show_first_round(self) -> None:
        """Show that the first round is trained, until somebody has applied it."""
        first = self.plan.manifest.first_round
        with self.swarm.waiting(f"training round {first}"):
            await self.swarm.until(lambda: self.swarm.round >= first)

    def close(self) -> None:
        """Stop watching: peers that end from now on are meant to."""
        for watcher in self.watchers:
            watcher.cancel()

    async def _start(self, peers: list[LocalPeer], bootstrap: str | None) -> None:
        """Start peers at the same time, and wait until all of them answer."""
        for peer in peers:
            peer.start(self.children, self.plan, bootstrap, self._fault_of(peer))
            self.swarm.peers.append(peer)
        for peer in peers:
            await peer.ready()
            self.watchers.append(self.tasks.create_task(self.swarm.watch(peer)))
            text = f"{peer.name} is up: {short(peer.id)} at {peer.addresses[0]}"
            self.swarm.note("up", text, peer=peer.name, id=peer.id, addresses=peer.addresses)

    def _fault_of(self, peer: LocalPeer) -> Fault | None:
        at = self.plan.kill_at
        return Fault("kill", at) if at is not None and peer.name == self.plan.victim else None

    async def _join(self, peer: LocalPeer) -> None:
        """Let a peer join once it has met another; the network may fail for a while."""
        run, deadline = self.swarm.run, time.monotonic() + JOIN_WITHIN
        own = self.plan.checkpoint_of(peer.name)
        await self.swarm.until(lambda: peer.status["state"] != "SOLO")
        while True:
            try:
                await peer.ask(lambda client: client.join_run(run, True, own))
                return
            except TransportError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY)


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the play: the first ShoalError if there is one, otherwise the first."""
    expected = group.subgroup(ShoalError)
    first = (expected or group).exceptions[0]
    return _cause(first) if isinstance(first, BaseExceptionGroup) else first
