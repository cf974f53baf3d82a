"""The daemon: one process per machine that owns the identity, the network and the runs, and answers the API.

It is the only place that knows everything, and it does nothing but put the parts together. torch is loaded with the
first run, not before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node import run_view
from shoal.node.api import serve_api
from shoal.node.checkpoint.lineage import going_on
from shoal.node.faults import armed
from shoal.node.home import DaemonInfo, Home
from shoal.node.introduction import find_manifest, introduce
from shoal.node.logs import warn
from shoal.node.manifest import Manifest, parse_manifest, sign_manifest
from shoal.node.options import NodeSettings
from shoal.node.service import Answer, find_run
from shoal.node.standing import node_state
from shoal.node.version import shoal_version
from shoal.protocol.errors import LocalError, RemoteError, TransportError
from shoal.protocol.identity import Identity
from shoal.protocol.ids import PeerId, RunId
from shoal.protocol.messages.node import GetManifest, Refused
from shoal.protocol.network import Network
from shoal.protocol.wire import Message

if TYPE_CHECKING:
    from shoal.node.checkpoint.read import Checkpoint
    from shoal.node.run import Run

RETRY_FIRST, RETRY_MOST = 0.5, 30.0  # seconds between tries to reach a bootstrap peer
LOOK_AT_HOME = 2.0  # seconds between two looks whether our home is still there

log = logging.getLogger("shoal.daemon")


async def run(settings: NodeSettings) -> None:
    """Be a node until a signal or the API ends it."""
    home = Home(settings.home)
    daemon = Daemon(settings, home, Identity.load_or_create(home.identity_key))
    await daemon.run()


class Daemon:
    """Implements `NodeService`."""

    def __init__(self, settings: NodeSettings, home: Home, identity: Identity) -> None:
        self._settings = settings
        self._home = home
        self._identity = identity
        self._runs: dict[str, Run] = {}
        self._founding = asyncio.Lock()  # one run is created, joined or left at a time
        self._stopping = asyncio.Event()
        self._fault = armed(os.environ)
        self._network = Network(identity, host=settings.listen_host, port=settings.port)
        self._network.takes = lambda run: self._member(run) is not None
        self._network.on_message = self._on_message
        self._network.on_call = self._on_call
        self._network.on_link = self._on_link
        self._network.on_left = self._on_left

    async def run(self) -> None:
        """Serve until asked to stop; leave the runs properly."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        if self._fault is not None:
            warn(log, "fault-armed", f"this node will hurt itself, as its environment asks: {self._fault.fault}")
        await self._network.start()
        try:
            settings = self._settings
            async with serve_api(self, self._home.token(), settings.admin_host, settings.admin_port) as (host, port):
                addresses = self._network.addresses()
                self._home.write_daemon(DaemonInfo(os.getpid(), host, port, self._identity.peer, addresses))
                log.info("node %s listens on %s", self._identity.peer, ", ".join(addresses))
                await self._live()
        finally:
            await self._network.close()

    async def _live(self) -> None:
        """Until asked to stop, or homeless."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._reach(address)) for address in self._settings.bootstrap]
                tasks.append(group.create_task(self._look_at_home()))
                await self._stopping.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self._stopping.set()
            async with self._founding:
                for run in self._runs.values():
                    await run.close()

    async def _look_at_home(self) -> None:
        """LocalError once the home is gone: nobody could find, ask or stop us there any more."""
        while self._home.holder() == os.getpid():
            await asyncio.sleep(LOOK_AT_HOME)
        raise LocalError(f"the node's folder {self._home.root} is gone, or is another's now; this node ends")

    async def _reach(self, address: str) -> None:
        """Keep trying to reach a bootstrap peer until it was reached once; after that the runs' members matter."""
        pause = RETRY_FIRST
        while True:
            try:
                peer = await self._network.connect(address)
                log.info("reached bootstrap peer %s", peer)
                return
            except TransportError as error:
                warn(log, "bootstrap-unreachable", f"cannot reach {address}: {error}; trying again")
            except (LocalError, RemoteError) as error:
                warn(log, "bootstrap-refused", f"{address} cannot be used: {error}")
                return
            await asyncio.sleep(pause)
            pause = min(RETRY_MOST, 2 * pause)

    # -- what the network says ------------------------------------------------------------------------------

    def _on_message(self, peer: PeerId, run: RunId | None, message: Message) -> None:
        member = self._member(run)
        if member is not None:
            member.meters.received(message)
            member.driver.receive(peer, message)

    def _on_left(self, peer: PeerId, run: RunId, message: Message, sent: bool) -> None:
        member = self._member(run)
        if member is not None:
            member.left(peer, message, sent)

    def _on_link(self, peer: PeerId, up: bool) -> None:
        for run in self._runs.values():
            run.driver.link(peer, up)

    async def _on_call(self, peer: PeerId, message: Message) -> Message:
        if isinstance(message, GetManifest):
            return introduce(message, list(self._runs.values()), self._network.addresses())
        return Refused(f"{type(message).__name__} is not served here")

    # -- what the API asks ----------------------------------------------------------------------------------

    def status(self) -> Answer:
        """See NodeService."""
        rows = [run_view.row(run, self._network.traffic(run.id)) for run in self._runs.values()]
        split = any(run_view.split(run) for run in self._runs.values())
        return {
            "version": shoal_version(),
            "peer": self._identity.peer,
            "state": node_state([row["phase"] for row in rows], split, bool(self._network.links())),
            "peers": len(self._network.links()),
            "reachability": "unknown",
            "addresses": list(self._network.addresses()),
            "runs": rows,
        }

    def peers(self) -> list[Answer]:
        """See NodeService."""
        links = {link.peer: link for link in self._network.links()}
        rows: list[Answer] = []
        for run in self._runs.values():
            rows += run_view.peer_rows(run, links)
        in_runs = {row["peer"] for row in rows}
        rest = [link for link in links.values() if link.peer not in in_runs]
        none = {"run": None, "round": None}
        return rows + [{"peer": link.peer, **none, "path": link.path, "rtt_ms": link.rtt_ms} for link in rest]

    def run_details(self, run: str) -> Answer:
        """See NodeService."""
        return run_view.details(self._find(run))

    def rounds(self, run: str, last: int | None = None) -> list[Answer]:
        """See NodeService."""
        return self._find(run).commits.as_json(last)

    def meters(self) -> list[Answer]:
        """See NodeService."""
        return [run_view.meters(run, self._network.traffic(run.id)) for run in self._runs.values()]

    async def create_run(self, manifest_toml: str, train: bool, checkpoint: str = "") -> Answer:
        """See NodeService."""
        manifest, loaded = parse_manifest(manifest_toml), await _load(checkpoint)
        manifest = going_on(manifest, loaded)
        signer = self._identity.signer(manifest.run_id)
        async with self._founding:
            if manifest.run_id.hex() in self._runs:
                raise LocalError(f"this node is in the run '{manifest.name}' already; another seed makes another run")
            signature = sign_manifest(manifest, signer)
            return await self._open(manifest, self._identity.peer, signature, [], train, loaded)

    async def join_run(self, run: str, train: bool, checkpoint: str = "") -> Answer:
        """See NodeService."""
        loaded = await _load(checkpoint)
        async with self._founding:
            if any(key.startswith(run) for key in self._runs):
                raise LocalError(f"this node is in the run {run} already")
            found = await find_manifest(run, self._network, self._identity)
            for peer, addresses in found.members.items():
                self._network.remember(peer, addresses)
            members = list(found.members)
            return await self._open(found.manifest, found.author, found.signature, members, train, loaded)

    async def leave_run(self, run: str) -> Answer:
        """See NodeService."""
        async with self._founding:
            leaving = self._find(run)
            await leaving.close()
            del self._runs[leaving.id.hex()]
        return {"run": leaving.id.hex(), "name": leaving.manifest.name}

    async def save_state(self, run: str, path: str) -> Answer:
        """See NodeService."""
        if not Path(path).is_absolute():
            raise LocalError(f"{path} is not an absolute path")
        snapshot = await self._find(run).save(Path(path))
        return {"round": snapshot.round, "root": snapshot.root.hex()}

    async def stop(self) -> None:
        """See NodeService."""
        self._stopping.set()

    # -- inside ---------------------------------------------------------------------------------------------

    def _member(self, run: RunId | None) -> Run | None:
        return self._runs.get(run.hex()) if run is not None else None

    def _find(self, run: str) -> Run:
        return self._runs[find_run(run, {key: each.manifest.name for key, each in self._runs.items()})]

    async def _open(
        self,
        manifest: Manifest,
        author: PeerId,
        signature: bytes,
        seeds: list[PeerId],
        train: bool,
        checkpoint: Checkpoint | None,
    ) -> Answer:
        from shoal.node.checkpoint.keep import Keeping
        from shoal.node.run import Run
        from shoal.node.run_settings import RunSettings

        key = manifest.run_id.hex()
        own = self._settings
        data = tuple(str(path.absolute()) for path in own.data)
        keeping = Keeping(own.checkpoint_every, own.checkpoint_keep)
        settings = RunSettings(self._home.run_folder(key), own.threads, data, train, keeping, self._fault)
        signer = self._identity.signer(manifest.run_id)
        run = await asyncio.to_thread(Run, manifest, author, signature, signer, self._network, settings, checkpoint)
        if self._stopping.is_set():
            raise LocalError("the node is ending")
        run.start(seeds)
        self._runs[key] = run
        log.info("in run %s (%s)", key, manifest.name)
        return {"run": key, "name": manifest.name}


async def _load(checkpoint: str) -> Checkpoint | None:
    """The checkpoint in a folder, verified; None if none is named."""
    if not checkpoint:
        return None
    if not Path(checkpoint).is_absolute():
        raise LocalError(f"{checkpoint} is not an absolute path")
    from shoal.node.checkpoint.read import load

    return await asyncio.to_thread(load, Path(checkpoint))
