"""The daemon: the process that owns a node's identity, its network and its runs, and answers the API.

This module only puts the parts together, and no other knows all of them. torch is not loaded before the first run.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.node.api.answers import (
    Checkpoint,
    ContinuedRun,
    ExpertRow,
    PeerRow,
    Round,
    RunLink,
    RunMetrics,
    RunName,
    SavedState,
    Status,
    Stopping,
    Today,
)
from shoal.node.api.errors import find_run
from shoal.node.api.operations import Handler, Operations
from shoal.node.api.status import summary
from shoal.node.base.fault_injection import armed_trigger
from shoal.node.base.home import DaemonInfo, Home
from shoal.node.base.logs import warn
from shoal.node.base.malloc import resident_bytes
from shoal.node.base.options import NodeSettings
from shoal.node.base.pools import DISK, NOTES
from shoal.node.base.process_identity import ProcessIdentity, network_namespace
from shoal.node.base.qr import qr_rows
from shoal.node.base.signals import on_ending
from shoal.node.daemon.diagnostics.doctor import Doctor
from shoal.node.daemon.diagnostics.netcheck import NetCheck
from shoal.node.daemon.diagnostics.peer_lookup import known_as
from shoal.node.daemon.draining import rounds_end
from shoal.node.daemon.guest.machine import Machine
from shoal.node.daemon.guest.pausing import AskedFile, Pausing
from shoal.node.daemon.guest.today import TodayCount
from shoal.node.daemon.guest.volume import DailyVolume
from shoal.node.daemon.handout import Handout
from shoal.node.daemon.own_settings import OwnSettings
from shoal.node.daemon.room import RoomWatch
from shoal.node.daemon.service_manager import ServiceManager
from shoal.node.daemon.transitions import Transitions
from shoal.node.daemon.web.server import serve_api
from shoal.node.daemon.writing import Writing
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.listings import public_runs
from shoal.node.peers.nearby import Nearby, may_be_near
from shoal.node.peers.peer_finder import PeerFinder
from shoal.node.peers.port_mapping import PortMapping
from shoal.node.peers.relaying import Relaying
from shoal.node.peers.remembered import PeerCache
from shoal.node.run import view as run_view
from shoal.node.run.directory import Directory
from shoal.node.run.introduction import introduce
from shoal.node.run.node_state import node_state
from shoal.node.run.runs import Runs
from shoal.node.run.same_manifest import tell_runs
from shoal.node.run.startup_runs import StartupRuns
from shoal.node.run.visible_peers import VisiblePeers, is_in_a_run
from shoal.node.training.checkpoint.scan import CHECKPOINTS, as_json, newest_first
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece
from shoal.protocol.messages.experts import AskExpert
from shoal.protocol.messages.node import GetManifest, GetRuns, Refused
from shoal.protocol.net.peers.calls import Serve
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.system.version import shoal_version

if TYPE_CHECKING:
    from shoal.node.run.run import Run

STDERR = 2
LAST_NOTE = 5.0  # seconds for which the end waits until the list of peers is on disk
MOST_DRAIN = 86_400.0  # seconds
WATCH_HOME = 2.0  # seconds between two checks that our home still exists

log = logging.getLogger("shoal.daemon")


async def run(settings: NodeSettings) -> None:
    """Run a node until a signal or the API ends it."""
    home = Home(settings.home)
    await Daemon(settings, home, Identity.load_or_create(home.identity_key)).run()


class Obstacle:
    """Why the node is not in the state that it should be in, as far as it is known."""

    def __init__(self, network: Network, runs: Runs, peer_finder: PeerFinder, startup_runs: StartupRuns) -> None:
        self._network, self._runs, self._peer_finder, self._startup_runs = network, runs, peer_finder, startup_runs
        self._was_in_runs = bool(runs.restoring)

    def words(self) -> str | None:
        """The obstacle in one sentence; None if there is none."""
        if self._runs.are_at_rest():
            return self._delay() or self._unanswered()
        return self._unanswered() or self._delay()

    def waits(self) -> bool:
        """Whether waiting is no fault, because we are the first member to be back after all had stopped.

        Not if another peer answers at the address of a member.
        """
        return self._runs.are_at_rest() and not self._peer_finder.is_misled and not self._delay()

    def _unanswered(self) -> str | None:
        """The peers that were sought in vain, while we have no connection."""
        unanswered = self._peer_finder.obstacle() if not self._network.links() else None
        if unanswered and self._was_in_runs:
            return unanswered if self._peer_finder.has_answered else f"rejoining: {unanswered}"
        return unanswered if unanswered and self._peer_finder.has_given_addresses else None

    def _delay(self) -> str | None:
        """What this node still has to do itself."""
        return self._runs.data.obstacle() or self._startup_runs.obstacle()


class Daemon:
    """Implements `NodeService`."""

    def __init__(self, settings: NodeSettings, home: Home, identity: Identity) -> None:
        """Create all parts, from the bottom up. Network and discovery call us only after they have started."""
        self._settings, self._home, self._identity = settings, home, identity
        self._stopping = asyncio.Event()
        self._process = ProcessIdentity.own()
        self._fault, self._manager = armed_trigger(os.environ), ServiceManager(os.environ)
        self._open: dict[str, Run] = {}  # the runs that are open
        shares_run = partial(is_in_a_run, self._open)
        self._network = Network(identity, host=settings.listen_host, port=settings.port)
        self._cache = PeerCache(home.peers)
        self._discovery = Discovery(identity, self._network, shares_run)
        self._visible_peers = VisiblePeers(self._network, self._open, self._discovery.contacts)
        self._peer_finder = PeerFinder(self._network, settings.bootstrap, self._cache, self._misses_somebody)
        self._nearby = Nearby(
            identity.peer, self._network.every_address, self._peer_finder.on_announced, self._peer_finder.on_withdrawn
        )
        self._runs = Runs(
            settings,
            home,
            identity,
            self._network,
            self._cache,
            self._fault,
            self._discovery,
            self._open,
            on_linked=self._peer_finder.add_linked,
        )
        self._expert_proxy = self._runs.families.proxy
        self._startup_runs = StartupRuns(settings, self._runs)
        self._obstacle = Obstacle(self._network, self._runs, self._peer_finder, self._startup_runs)
        throttle = self._network.throttle
        throttle.up.cap(settings.max_up)
        throttle.down.cap(settings.max_down)
        volume = DailyVolume(home.volume, settings.max_per_day, lambda: throttle.total)
        today = TodayCount(home.today, self._done)
        asked, machine = AskedFile(home.pause), Machine(self._runs.processes)
        self._pausing = Pausing(settings, asked, volume, throttle, self._runs, self._cache.load, machine, today)
        self._own_settings = OwnSettings(settings, home, self._pausing.apply)
        self._draining: asyncio.Task[None] | None = None
        self._relaying = Relaying(self._network, self._discovery, self._runs.move)
        self._port_mapping = PortMapping(settings, self._network, self._discovery, self._relaying, self._runs.move)
        self._directory = Directory(self._discovery, self._network, lambda: self._open)
        self._netcheck = NetCheck(self._network, self._discovery, self._relaying, self.status)
        self._doctor = Doctor(self._network, self._discovery, self._relaying, self._peer_finder, lambda: self._open)
        self._room = RoomWatch(home.root)
        self._writing = Writing(home, self._runs.find, self._runs.writers)
        self._calls = self._served()
        self._handlers = Handlers(
            takes=lambda run: self._runs.get(run) is not None,
            shares_run=shares_run,
            on_message=self._on_message,
            on_call=self._on_call,
            on_link=self._on_link,
            on_ended=self._on_ended,
            on_payload_done=self._on_payload_done,
            on_stranger=self._peer_finder.greet_stranger,
        )

    async def run(self) -> None:
        """Serve until asked to stop; then leave the runs properly."""
        on_ending(lambda _: self._stopping.set())
        if self._fault is not None:
            warn(log, "fault-armed", f"this node will fail on purpose, as SHOAL_FAULT asks: {self._fault.fault}")
        await self._network.start(self._handlers)
        self._discovery.start(on_news=self._relaying.hear_news)
        await self._expert_proxy.start()
        try:
            where = self._settings.admin_host, self._settings.admin_port
            async with serve_api(self, self._home.token(), *where) as (host, port):
                addresses = self._network.addresses()
                here = self._home.is_log(STDERR)
                about = DaemonInfo(os.getpid(), host, port, self._identity.peer, addresses, here, network_namespace())
                self._home.write_daemon(about)
                log.info("node %s listens on %s", self._identity.peer, ", ".join(addresses))
                await self._run_tasks()
        finally:
            await self._expert_proxy.close()
            await self._discovery.close()
            await self._network.close()

    async def _run_tasks(self) -> None:
        """Run all tasks until asked to stop, or until the home is gone."""
        finding = [self._peer_finder.run, self._directory.run, self._relaying.run, self._port_mapping.run]
        if may_be_near(self._settings):
            finding.append(self._nearby.run)
        watching = [self._watch_home, self._note_peers, self._room.run, Transitions(self.status).run]
        watching.append(self._notify_manager)
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
                    await NOTES.run(self._cache.update, self._visible_peers.to_note())
            await asyncio.gather(self._netcheck.close(), self._directory.close())
            await self._manager.extend_timeout_during(self._runs.close())

    async def _enter_runs(self) -> None:
        """Enter the runs in which the node was when it last stopped, then those of the command line."""
        seeds = list(self._peer_finder.last_seen)
        await self._pausing.has_looked.wait()
        await self._runs.restore(seeds)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._runs.keep_restoring(seeds))
            group.create_task(self._startup_runs.run())

    async def _watch_home(self) -> None:
        """LocalError once the home is gone: no command could find, ask or stop us any more."""
        while await NOTES.run(self._holds_home):
            await asyncio.sleep(WATCH_HOME)
        raise LocalError(
            f"the node's folder {self._home.root} is gone, or is another's now; this node ends", code="home-gone"
        )

    def _holds_home(self) -> bool:
        """Whether the home exists and we hold its lock; also True if that cannot be checked now."""
        try:
            return self._home.daemon_process() == self._process
        except LocalError as error:
            warn(log, "home-not-seen", f"{error}; looking again")
            return True

    async def _note_peers(self) -> None:
        await self._visible_peers.keep_noted(self._cache.update)

    async def _notify_manager(self) -> None:
        """Report to the service manager from the event loop, so that its watchdog notices if the loop hangs."""
        self._manager.ready()
        while True:
            self._manager.alive(summary(self.status()))
            await asyncio.sleep(self._manager.pause)

    # -- who is there ---------------------------------------------------------------------------------------

    def _done(self) -> Today:
        up, down = self._network.throttle.up, self._network.throttle.down
        return {"rounds": self._runs.tally.rounds, "sent": up.total, "received": down.total}

    def _misses_somebody(self) -> bool:
        """Whether to look for other peers: we are alone, or not in a run that we should be in."""
        return self._visible_peers.is_alone() or self._startup_runs.obstacle() is not None

    # -- what the network says ------------------------------------------------------------------------------

    def _on_message(self, peer: PeerId, run: RunId | None, message: Message) -> None:
        if (member := self._runs.get(run)) is not None:
            member.received(peer, message)

    def _on_payload_done(self, peer: PeerId, run: RunId, message: Message, sent: bool) -> None:
        if (member := self._runs.get(run)) is not None:
            member.left(peer, message, sent)

    def _on_link(self, peer: PeerId, up: bool) -> None:
        for run in self._open.values():
            run.driver.link(peer, up)
        self._peer_finder.link(peer, up)
        self._discovery.link(peer, up)
        self._relaying.link(peer, up)
        self._expert_proxy.link(peer, up)

    def _on_ended(self, peer: PeerId) -> None:
        for run in self._open.values():
            run.driver.ended(peer)

    def _served(self) -> dict[type[Message], Serve]:
        """The handlers of other nodes' calls, by message type."""
        served: dict[type[Message], Callable[[PeerId, Any], Message | Awaitable[Message]]] = {
            **self._discovery.calls(),
            **self._doctor.calls(),
            GetManifest: lambda peer, message: introduce(message, self._runs.all, self._network.addresses()),
            GetRuns: lambda peer, message: tell_runs(message, [(each.id, each.manifest) for each in self._runs.all]),
            GetPiece: self._runs.data.answer,
            AskExpert: self._expert_proxy.on_call,
        }
        return served

    def _on_call(self, peer: PeerId, message: Message) -> Message | Awaitable[Message]:
        serve = self._calls.get(type(message))
        return serve(peer, message) if serve is not None else Refused(f"{type(message).__name__} is not served here")

    # -- what the API asks ----------------------------------------------------------------------------------

    def status(self) -> Status:
        """See NodeService."""
        rows = run_view.all_rows(self._runs, self._network)
        up, down = self._network.bandwidth.claim()
        split = run_view.all_splits((run, self._directory.evidence(run)) for run in self._open.values())
        return {
            "version": shoal_version(),
            "peer": self._identity.peer,
            "state": node_state([row["phase"] for row in rows], bool(split), bool(self._network.links())),
            "evidence": split,
            "peers": len(self._network.links()),
            "obstacle": self._obstacle.words(),
            "waits": self._obstacle.waits(),
            "download": self._runs.data.download(),
            **self._pausing.as_json(),
            "reachability": self._discovery.verdict.reachability,
            **self._relaying.as_json(),
            "port_mapping": self._port_mapping.as_json(),
            "line": {"up": up, "down": down},
            "dht": self._discovery.as_json(),
            "addresses": list(self._network.addresses()),
            "untold_addresses": list(self._network.untold_addresses),
            "home": str(self._home.root),
            "memory": resident_bytes(),
            "room": self._room.seen,
            "ending": self._stopping.is_set(),
            "day": run_view.day_cost(self._open.values()),
            "draining": self._draining is not None,
            "runs": rows,
        }

    def peers(self) -> list[PeerRow]:
        """See NodeService."""
        return run_view.all_peer_rows(list(self._open.values()), self._network)

    def rounds(self, run: str, last: int | None = None) -> list[Round]:
        """See NodeService."""
        return self._runs.find(run).commits.as_json(last)

    def meters(self) -> list[RunMetrics]:
        """See NodeService."""
        return [run_view.meters(run, self._network.traffic(run.id)) for run in self._open.values()]

    def experts(self, family: str) -> list[ExpertRow]:
        """See NodeService."""
        return self._runs.families.experts(family)

    def handlers(self) -> list[Handler]:
        """See NodeService."""
        runs, families, table = self._runs, self._runs.families, Operations

        return [
            table.status.handled_by(self.status),
            table.peers.handled_by(self.peers),
            table.settings.handled_by(self._own_settings.as_json),
            table.change_settings.handled_by(self._own_settings.change),
            table.netcheck.handled_by(self._netcheck.answer),
            table.examine.handled_by(self._doctor.examine),
            table.runs.handled_by(lambda: self.status()["runs"]),
            table.run_details.handled_by(lambda run: run_view.details(runs.find(run))),
            table.rounds.handled_by(self.rounds),
            table.timeline.handled_by(lambda run, round: run_view.timeline(runs.find(run), round)),
            table.run_link.handled_by(self._run_link),
            table.public_runs.handled_by(lambda: public_runs(self._discovery)),
            table.preview_run.handled_by(runs.preview),
            table.create_run.handled_by(runs.create),
            table.lookup_runs.handled_by(runs.lookup),
            table.join_run.handled_by(runs.join),
            table.join_run_by_id.handled_by(lambda run, train, checkpoint="": runs.join(run, train, checkpoint)),
            table.leave_run.handled_by(lambda run: runs.leave(run)),
            table.continue_run.handled_by(self._continue),
            table.promote_member.handled_by(self._promote),
            table.save_state.handled_by(self._save_state),
            table.checkpoints.handled_by(self._checkpoints),
            table.write_text.handled_by(self._writing.write),
            table.experts.handled_by(families.experts),
            table.expert_sources.handled_by(families.sources),
            table.fetch_experts.handled_by(families.fetch),
            table.pause.handled_by(self._pausing.pause),
            table.resume.handled_by(self._pausing.resume),
            table.drain.handled_by(self.drain),
            table.stop.handled_by(self.stop),
        ]

    def _run_link(self, run: str) -> RunLink:
        answer = self._runs.link(run)
        return {**answer, "qr": qr_rows(answer["link"])}

    async def _checkpoints(self, run: str) -> list[Checkpoint]:
        """Of any run that is listed, also of one that cannot be opened."""
        names = {row["run"]: row["name"] or "" for row in self.status()["runs"]}
        folder = self._home.run_folder(find_run(run, names)) / CHECKPOINTS
        return [as_json(each) for each in reversed(await DISK.run(newest_first, folder))]

    async def _save_state(self, run: str, path: str, own: bool = False) -> SavedState:
        if not Path(path).is_absolute():
            raise LocalError(f"{path} is not an absolute path", code="bad-value")
        snapshot = await self._runs.find(run).save(Path(path), own)
        return {"round": snapshot.round, "root": snapshot.root.hex()}

    async def _continue(self, run: str, sure: bool) -> ContinuedRun:
        found = self._runs.find(run)
        found.member.log.check_going_on()
        answer = run_view.without_quorum(found)
        if sure:
            found.go_on()
        return answer

    async def _promote(self, run: str, peer: str) -> RunName:
        found = self._runs.find(run)
        found.promote(known_as(peer, [member.peer for member in found.member.log.register.members]))
        return {"run": found.id.hex(), "name": found.manifest.name}

    def drain(self, within: float | None = None) -> Stopping:
        """Stop once the rounds under way are over, or so many seconds have passed; returns at once."""
        if within is not None and not 0 <= within <= MOST_DRAIN:
            raise LocalError(f"draining within {within:g} s: give at most {MOST_DRAIN:g} s", code="bad-value")
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(within))
        return {"stopping": True}

    async def _drain(self, within: float | None) -> None:
        await rounds_end(self._open.values, within)
        self.stop()

    def stop(self) -> Stopping:
        """Begin to leave all runs and end; returns at once, so that the caller gets its answer."""
        self._stopping.set()
        return {"stopping": True}
