"""The daemon: one process per machine that owns the identity, the network and the runs, and answers the API.

It is the only place that knows everything, and it does nothing but put the parts together. torch is loaded with the
first run, not before.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path

from shoal.node.api import serve_api
from shoal.node.doctor.desk import Desk
from shoal.node.faults import armed
from shoal.node.handout.desk import Handout
from shoal.node.home import DaemonInfo, Home
from shoal.node.life import Life, network
from shoal.node.logs import warn
from shoal.node.netcheck.gathering import NetCheck
from shoal.node.options import NodeSettings
from shoal.node.pausing import under_limits
from shoal.node.peers.directory import Directory
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.listings import providers, public_runs
from shoal.node.peers.nearby import Nearby, may_be_near
from shoal.node.peers.port_mapping import PortMapping
from shoal.node.peers.reaching import Reaching
from shoal.node.peers.relaying import Relaying
from shoal.node.peers.sight import Sight
from shoal.node.pools import NOTES
from shoal.node.run import view as run_view
from shoal.node.run.errands import Errands
from shoal.node.run.introduction import introduce
from shoal.node.run.remembered import PeerCache
from shoal.node.run.runs import Runs
from shoal.node.run.standing import node_state
from shoal.node.sentence import summary
from shoal.node.service import Answer
from shoal.node.service_manager import ServiceManager
from shoal.node.signals import on_ending
from shoal.node.transitions import Transitions
from shoal.node.usage import resident_bytes
from shoal.protocol.errors import LocalError
from shoal.protocol.identity import Identity
from shoal.protocol.ids import PeerId, RunId
from shoal.protocol.messages.data import GetPiece
from shoal.protocol.messages.experts import AskExpert
from shoal.protocol.messages.node import GetManifest, Refused
from shoal.protocol.network import Network
from shoal.protocol.version import shoal_version
from shoal.protocol.wire import Message

STDERR = 2
LAST_NOTE = 5.0  # seconds for which the end waits for the disk to take who was there
LOOK_AT_HOME = 2.0  # seconds between two looks whether our home is still there

log = logging.getLogger("shoal.daemon")


async def run(settings: NodeSettings) -> None:
    """Be a node until a signal or the API ends it."""
    home = Home(settings.home)
    await Daemon(settings, home, Identity.load_or_create(home.identity_key)).run()


class Daemon:
    """Implements `NodeService`."""

    def __init__(self, settings: NodeSettings, home: Home, identity: Identity) -> None:
        self._settings = settings
        self._home = home
        self._identity = identity
        self._stopping = asyncio.Event()
        self._life = Life.own()
        self._fault, self._manager = armed(os.environ), ServiceManager(os.environ)
        self._network = Network(identity, host=settings.listen_host, port=settings.port)
        self._network.takes = lambda run: self._runs.get(run) is not None
        self._network.on_message = self._on_message
        self._network.on_call = self._on_call
        self._network.on_link = self._on_link
        self._network.on_left = self._on_left
        self._cache = PeerCache(home.peers)
        self._runs = Runs(settings, home, identity, self._network, self._cache, self._fault)
        self._pausing = under_limits(settings, home.volume, self._network, self._runs, self._cache.load)
        self._sight = Sight(self._network, lambda: self._runs.open, lambda: self._discovery.contacts())
        self._network.is_fellow = self._sight.is_in_a_run
        self._discovery = Discovery(identity, self._network, self._sight.is_in_a_run)
        self._relaying = Relaying(self._network, self._discovery, self._runs.move)
        self._port_mapping = PortMapping(settings, self._network, self._discovery, self._relaying, self._runs.move)
        self._netcheck = NetCheck(self._network, self._discovery, self._relaying, self._port_mapping.as_json)
        families = self._runs.families
        families.discovery, self._switchboard = self._discovery, families.switchboard
        self.experts, self.fetch_experts, self.expert_sources = families.experts, families.fetch, families.sources
        self._directory = Directory(self._discovery, self._network, lambda: self._runs.open)
        self._runs.providers = lambda run: providers(self._discovery, run)
        self._was_in_runs = bool(self._runs.restoring)
        self._errands = Errands(settings, self._runs)
        self._reaching = Reaching(self._network, settings.bootstrap, self._cache, self._misses_somebody)
        self._runs.on_linked = self._reaching.also
        self._desk = Desk(self._network, self._discovery, self._relaying, self._reaching, lambda: self._runs.open)
        self.netcheck, self.examine = self._netcheck.answer, self._desk.examine
        self._nearby = Nearby(identity.peer, self._network.every_address, self._reaching.hear, self._reaching.unhear)

    async def run(self) -> None:
        """Serve until asked to stop; leave the runs properly."""
        on_ending(lambda _: self._stopping.set())
        if self._fault is not None:
            warn(log, "fault-armed", f"this node will hurt itself, as its environment asks: {self._fault.fault}")
        await self._network.start()
        self._discovery.start()
        await self._switchboard.start()
        try:
            where = self._settings.admin_host, self._settings.admin_port
            async with serve_api(self, self._home.token(), *where) as (host, port):
                addresses = self._network.addresses()
                here = self._home.is_log(STDERR)
                about = DaemonInfo(os.getpid(), host, port, self._identity.peer, addresses, here, network())
                self._home.write_daemon(about)
                log.info("node %s listens on %s", self._identity.peer, ", ".join(addresses))
                await self._live()
        finally:
            await self._switchboard.close()
            await self._discovery.close()
            await self._network.close()

    async def _live(self) -> None:
        """Until asked to stop, or homeless."""
        finding = [self._reaching.run, self._directory.run, self._relaying.run, self._port_mapping.run]
        if may_be_near(self._settings):
            finding.append(self._nearby.run)
        watching = [self._look_at_home, self._note_peers, Transitions(self.status).run, self._keep_in_touch]
        duties = (*finding, self._enter_runs, self._pausing.run, Handout(self._home, self._runs).run, *watching)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(duty()) for duty in duties]
                await self._stopping.wait()
                self._manager.stopping()
                for task in tasks:
                    task.cancel()
        finally:
            self._stopping.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_NOTE):
                    await NOTES.run(self._cache.update, self._sight.to_note())
            await asyncio.gather(self._netcheck.close(), self._directory.close())
            await self._manager.bears_with(self._runs.close())

    async def _enter_runs(self) -> None:
        """The runs of our last life come first, then what the command line wants."""
        seeds = list(self._reaching.last_seen)
        await self._runs.restore(seeds)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._runs.keep_restoring(seeds))
            group.create_task(self._errands.run())

    async def _look_at_home(self) -> None:
        """LocalError once the home is gone: nobody could find, ask or stop us there any more."""
        while await NOTES.run(self._is_ours):
            await asyncio.sleep(LOOK_AT_HOME)
        raise LocalError(f"the node's folder {self._home.root} is gone, or is another's now; this node ends")

    def _is_ours(self) -> bool:
        """Whether the home is there, with us in it. That we cannot look, for want of a file handle, proves nothing."""
        try:
            return self._home.holding() == self._life
        except LocalError as error:
            warn(log, "home-not-seen", f"{error}; looking again")
            return True

    async def _note_peers(self) -> None:
        await self._sight.keep_noted(self._cache.update)

    async def _keep_in_touch(self) -> None:
        """With the service manager, from the event loop: if that hangs, the watchdog is right."""
        self._manager.ready()
        while True:
            self._manager.alive(summary(self.status()))
            await asyncio.sleep(self._manager.pause)

    # -- who is there ---------------------------------------------------------------------------------------

    def _misses_somebody(self) -> bool:
        """Whether we should look for others: we are alone, or not in a run that we should be in."""
        return self._sight.is_alone() or self._errands.obstacle() is not None

    def _obstacle(self) -> str | None:
        """Why we are not where we should be, in one sentence."""
        if self._runs.are_at_rest():
            return self._delay() or self._unanswered()
        return self._unanswered() or self._delay()

    def _unanswered(self) -> str | None:
        """Who was looked for in vain, while we are alone."""
        unanswered = self._reaching.obstacle() if not self._network.links() else None
        if unanswered and self._was_in_runs:
            return f"rejoining: {unanswered}"
        return unanswered if unanswered and self._reaching.is_told else None

    def _delay(self) -> str | None:
        """What is still to be done here."""
        return self._runs.data.obstacle() or self._errands.obstacle()

    def _waits(self) -> bool:
        """Whether we are the first to be back, and miss nobody yet: where the others were nobody else answers."""
        return self._runs.are_at_rest() and not self._reaching.is_misled and not self._delay()

    # -- what the network says ------------------------------------------------------------------------------

    def _on_message(self, peer: PeerId, run: RunId | None, message: Message) -> None:
        if (member := self._runs.get(run)) is not None:
            member.meters.received(message)
            member.driver.receive(peer, message)

    def _on_left(self, peer: PeerId, run: RunId, message: Message, sent: bool) -> None:
        if (member := self._runs.get(run)) is not None:
            member.left(peer, message, sent)

    def _on_link(self, peer: PeerId, up: bool) -> None:
        for run in self._runs.open.values():
            run.driver.link(peer, up)
        self._discovery.link(peer, up)
        self._relaying.link(peer, up)
        self._switchboard.link(peer, up)

    def _on_call(self, peer: PeerId, message: Message) -> Message | Awaitable[Message]:
        if self._discovery.handles(message):
            return self._discovery.on_call(peer, message)
        if self._desk.handles(message):
            return self._desk.on_call(peer, message)
        if isinstance(message, GetManifest):
            return introduce(message, self._runs.all, self._network.addresses())
        if isinstance(message, GetPiece):
            return self._runs.data.answer(peer, message)
        if isinstance(message, AskExpert):
            return self._switchboard.on_call(peer, message)
        return Refused(f"{type(message).__name__} is not served here")

    # -- what the API asks ----------------------------------------------------------------------------------

    def status(self) -> Answer:
        """See NodeService."""
        rows = [run_view.row(run, self._network.traffic(run.id)) for run in self._runs.open.values()]
        split = run_view.all_splits((run, self._directory.evidence(run)) for run in self._runs.open.values())
        return {
            "version": shoal_version(),
            "peer": self._identity.peer,
            "state": node_state([row["phase"] for row in rows], bool(split), bool(self._network.links())),
            "evidence": split,
            "peers": len(self._network.links()),
            "obstacle": self._obstacle(),
            "waits": self._waits(),
            **self._pausing.as_json(),
            "reachability": self._discovery.verdict.reachability,
            **self._relaying.as_json(),
            "port_mapping": self._port_mapping.as_json(),
            "line": dict(zip(("up", "down"), self._network.bandwidth.claim(), strict=True)),
            "dht": self._discovery.as_json(),
            "addresses": list(self._network.addresses()),
            "untold_addresses": list(self._network.untold_addresses),
            "memory": resident_bytes(),
            "ending": self._stopping.is_set(),
            "runs": [*run_view.family_rows(self._runs), *rows, *run_view.rows_of_closed(self._runs)],
        }

    def peers(self) -> list[Answer]:
        """See NodeService."""
        return run_view.all_peer_rows(list(self._runs.open.values()), self._network)

    def run_details(self, run: str) -> Answer:
        """See NodeService."""
        return run_view.details(self._runs.find(run))

    def rounds(self, run: str, last: int | None = None) -> list[Answer]:
        """See NodeService."""
        return self._runs.find(run).commits.as_json(last)

    def timeline(self, run: str, round: int) -> Answer:
        """See NodeService."""
        return run_view.timeline(self._runs.find(run), round)

    def meters(self) -> list[Answer]:
        """See NodeService."""
        return [run_view.meters(run, self._network.traffic(run.id)) for run in self._runs.open.values()]

    async def create_run(self, manifest_toml: str, train: bool, checkpoints: Sequence[str] = ()) -> Answer:
        """See NodeService."""
        return await self._runs.create(manifest_toml, train, checkpoints)

    def run_link(self, run: str) -> Answer:
        """See NodeService."""
        return self._runs.link(run)

    async def preview_run(self, link: str) -> Answer:
        """See NodeService."""
        return await self._runs.preview(link)

    async def join_run(self, link: str, train: bool, checkpoint: str = "") -> Answer:
        """See NodeService."""
        return await self._runs.join(link, train, checkpoint)

    async def public_runs(self) -> list[Answer]:
        """See NodeService."""
        return await public_runs(self._discovery)

    async def leave_run(self, run: str) -> Answer:
        """See NodeService."""
        return await self._runs.leave(run)

    async def save_state(self, run: str, path: str, own: bool = False) -> Answer:
        """See NodeService."""
        if not Path(path).is_absolute():
            raise LocalError(f"{path} is not an absolute path")
        snapshot = await self._runs.find(run).save(Path(path), own)
        return {"round": snapshot.round, "root": snapshot.root.hex()}

    async def stop(self) -> None:
        """See NodeService."""
        self._stopping.set()
