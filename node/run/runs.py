"""The runs that this node is in: created, joined, left, and entered again after a restart.

Rules:
- One run is entered or left at a time.
- A run is on disk before we are in it and until we leave it, so a restart forgets none. It is opened again as it
  was, never created a second time: its creator, too, goes on with the votes that it has written down.
- While the node is paused all of them are at rest, as after a stop, and none is entered.
- A run is shown as restoring until it is open again; one that cannot be opened is shown as failed, with the reason,
  until it is left. One that does not fit into memory now is tried again, as others may end.
- Whether a run fits into memory is checked before anything of it is made.
- torch is loaded with the first run, not before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from shoal.dht.link import left_out
from shoal.node.api.answers import CreatedRun, Preview, RunLink, RunName
from shoal.node.api.errors import find_run
from shoal.node.base.devices import has_gpu
from shoal.node.base.fault_injection import FaultTrigger
from shoal.node.base.home import Home
from shoal.node.base.logs import warn
from shoal.node.base.malloc import sweep
from shoal.node.base.options import NodeSettings
from shoal.node.base.pools import DISK, LONG, NOTES, RECORDS
from shoal.node.base.room import NoRoom, available_memory, check_disk, or_no_room
from shoal.node.experts.families import Families
from shoal.node.manifest.fitting import Load, check_fits, checkpoint_bytes
from shoal.node.manifest.manifest import Introduction, Manifest, parse_manifest, sign_manifest
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.listings import providers
from shoal.node.peers.remembered import Joined, PeerCache, forget_run, remember_run, remembered_runs
from shoal.node.run import reloading
from shoal.node.run.founding import begun, check_begins, check_is_new, check_tokens, forget_founded, found
from shoal.node.run.introduction import describe, find_manifest, link_to, wanted
from shoal.node.run.reloading import Kept
from shoal.node.training.data.supply import GIB, Supply
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.shortages import in_words, is_temporary
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import is_loopback
from shoal.protocol.net.system.identity import Identity

if TYPE_CHECKING:
    from shoal.node.experts.family import Family
    from shoal.node.run.run import Run
    from shoal.node.training.checkpoint.read import Checkpoint

RETRY = 15.0  # seconds between two tries to open a run again for which there was no room

log = logging.getLogger("shoal.daemon")


class Runs:
    """All runs of one node, by their ids in hex."""

    def __init__(
        self,
        settings: NodeSettings,
        home: Home,
        identity: Identity,
        network: Network,
        cache: PeerCache,
        fault: FaultTrigger | None,
        discovery: Discovery,
        open_runs: dict[str, Run],
        on_linked: Callable[[Sequence[str]], None],
    ) -> None:
        """`open_runs` is where the open ones are kept; `on_linked` hears the addresses of links by which we joined."""
        self.open = open_runs
        self.restoring = remembered_runs(home)  # runs of our last life that are not open yet
        self.broken: dict[str, str] = {}  # runs that could not be opened again, and why
        self.lacking: dict[str, str] = {}  # those that cannot be restored yet, and why
        self.paused = ""  # why no run is entered, in a sentence; empty if they are
        limit = round(settings.data_limit * GIB)
        self.data = Supply(home.data, settings.data, limit, settings.share_data, network.call)
        self.families = Families(self, home, identity, network, discovery)
        self._settings, self._home, self._identity = settings, home, identity
        self._network, self._discovery = network, discovery
        self._cache, self._on_linked = cache, on_linked
        self._fault = fault
        self._entering = asyncio.Lock()
        self._closing = False
        self._warned: dict[str, str] = {}  # of which kind of reason, for those that cannot be restored yet

    def get(self, run: RunId | None) -> Run | None:
        """The run that a message is about, if we are in it."""
        return self.open.get(run.hex()) if run is not None else None

    def find(self, wanted: str) -> Run:
        """The run that a person means; UnknownRun if we are not in it."""
        return self.open[find_run(wanted, {key: each.manifest.name for key, each in self.open.items()})]

    def has(self, prefix: str) -> bool:
        """Whether we are, or should be, in the run whose id is or begins like that, be it broken."""
        known = [*self.open, *self.families.open, *self.restoring, *self.broken]
        return any(key.startswith(prefix.lower()) for key in known)

    def has_founded(self, wanted: Manifest) -> bool:
        """Whether we are, or should be, in the run of this manifest, or in ours of it that names its data, too."""
        return self.has(wanted.run_id.hex()) or reloading.has_founded(self._home, self._identity, wanted)

    @property
    def all(self) -> list[Run | Family]:
        """That are open, and the families."""
        return [*self.open.values(), *self.families.open.values()]

    def are_at_rest(self) -> bool:
        """Whether all that we are in is over, or what we kept when all nodes had stopped, and nobody else is back."""
        is_all_open = self.open and not self.restoring and not self.broken
        return bool(is_all_open) and all(run.is_resting or run.is_finished for run in self.open.values())

    # -- entering and leaving -------------------------------------------------------------------------------

    async def restore(self, seeds: Sequence[PeerId]) -> None:
        """Be again in the runs that we were in; `seeds` were there last time."""
        for run in list(self.restoring):
            async with self._entering:
                if run not in self.restoring or self.paused:
                    continue  # it was left meanwhile, or is to wait
                try:
                    with or_no_room(f"opening the run {run[:8]} again"):
                        await self._restore(run, seeds)
                    log.info("in run %s again", run)
                except (ShoalError, OSError, MemoryError) as error:
                    if self.paused:
                        continue  # in the middle of it
                    is_unreached = isinstance(error, TransportError)  # nobody is there who has its data
                    if is_unreached or is_temporary(error):
                        self._await(run, "run-waits" if is_unreached else "no-room", in_words(error))
                        continue
                    self.broken[run] = in_words(error)
                    log.error("cannot be in run %s again: %s", run, error, extra={"code": "run-not-restored"})
                self.restoring.remove(run)
                self.lacking.pop(run, None)
                self._warned.pop(run, None)

    def _await(self, run: str, code: str, words: str) -> None:
        """It cannot be opened yet. It is warned of if its kind is another than before: amounts change each time."""
        if self._warned.get(run) != code:
            warn(log, code, f"cannot be in run {run} again yet: {words}; trying again")
        self._warned[run] = code
        self.lacking[run] = words

    async def keep_restoring(self, seeds: Sequence[PeerId]) -> None:
        """Try again, as long as this is awaited, where there was no room; also what has failed since for want of it."""
        while True:
            await asyncio.sleep(RETRY)
            await self._set_aside()
            if self.lacking:
                await self.restore(seeds)

    async def _set_aside(self) -> None:
        """Runs that have failed for want of what there may be again: they are opened as after a restart."""
        for key, run in list(self.open.items()):
            if run.may_be_opened_again:
                async with self._entering:
                    if self.open.get(key) is run:
                        await end_all([run])
                        del self.open[key]
                        self.restoring.append(key)
                        self.lacking[key] = run.failure

    async def _restore(self, run: str, seeds: Sequence[PeerId]) -> None:
        found, joined = await RECORDS.run(reloading.recall, self._home, self._identity, run, seeds)
        check_fits(
            found.manifest, available_memory(), self._load(joined.trains, await self.data.size(found.manifest.data))
        )
        kept = await reloading.load_kept(self._home.run_folder(run), found.manifest)
        came_with = await reloading.load_checkpoint_again(joined.checkpoint)
        await self._enter(found, joined.trains, came_with, kept)

    async def pause(self) -> None:
        """Say good-bye to all runs, and keep them until `restore`; `paused` says why, before this is called."""
        families = list(self.families.open)
        await self.families.close()
        async with self._entering:
            await end_all(list(self.open.values()))
            self.restoring += [*families, *self.open]
            self.open.clear()

    async def create(self, manifest_toml: str, train: bool, checkpoints: Sequence[str] = ()) -> CreatedRun:
        """Found a run, and be its first member; from the folder of a checkpoint it goes on there.

        The answer also says what of the person's files is not in the run's data (`left_out`), if anything is not.
        """
        manifest = parse_manifest(manifest_toml)
        if manifest.model.is_complete:  # else once it is
            await self._check_room_with_text(manifest, train)
        manifest = await self.data.named(manifest)
        created = await self._create(manifest, train, checkpoints)
        left_out = self.data.left_out(manifest.data)
        return cast(CreatedRun, {**created, "left_out": left_out} if left_out else created)

    async def _create(self, manifest: Manifest, train: bool, checkpoints: Sequence[str]) -> RunLink:
        seeds = [loaded for each in checkpoints if (loaded := await reloading.load_checkpoint(each)) is not None]
        if seeds or manifest.model.is_complete:
            await check_tokens(manifest, self.data)
            manifest, loaded = await begun(manifest, seeds, self.data, self.families)
            return await self.found(manifest, train, loaded)
        check_is_new(manifest, await RECORDS.run(self.has_founded, manifest))
        weights, me = self._settings.trainer.folders, self._identity.peer
        check = partial(self._check_room, train=train, text=await self.data.size(manifest.data))
        manifest, loaded = await found(manifest, self.data, weights, self._home, me, check)
        try:
            return await self.found(manifest, train, loaded)
        except BaseException:
            await DISK.run(forget_founded, self._home, manifest)
            raise

    async def found(self, manifest: Manifest, train: bool, loaded: Checkpoint | None) -> RunLink:
        """Found the run of this manifest, which goes on from that checkpoint."""
        check_begins(manifest)
        async with self._entering:
            check_is_new(manifest, self.has(manifest.run_id.hex()))
            await reloading.forget_rest(self._home.run_folder(manifest.run_id.hex()))
            signature = sign_manifest(manifest, self._identity.signer(manifest.run_id))
            return await self._enter(Introduction(manifest, self._identity.peer, signature, {}), train, loaded)

    async def preview(self, link: str) -> Preview:
        """What joining a run would mean, from its link or id; nothing is joined, and nothing kept."""
        found = await self._find(link)
        data = await self.data.standing(found.manifest.data, self._donors(found))
        lack = await self._lack(found.manifest)
        return await LONG.run(describe, found, data, lack)

    async def join(self, link: str, train: bool, checkpoint: str = "") -> RunLink:
        """Become a member of a run, from its link or id; with the checkpoint that it goes on from, at once."""
        self._check_goes_on()
        loaded = await reloading.load_checkpoint(checkpoint)
        found = await self._find(link)  # which may take long: others may be entered meanwhile, or all be left
        await self._check_room_with_text(found.manifest, train)
        async with self._entering:
            self._check_is_new(found.manifest.run_id.hex())
        await self._data_for(found, train)  # which may take hours, and holds up no other run
        async with self._entering:
            self._check_is_new(found.manifest.run_id.hex())
            await reloading.forget_rest(self._home.run_folder(found.manifest.run_id.hex()))
            entered = await self._enter(found, train, loaded)
        self._on_linked(wanted(link)[1])
        return entered

    def move(self) -> None:
        """We can be reached elsewhere, and every member is told."""
        for run in self.open.values():
            run.driver.move(self._network.addresses())

    async def leave(self, wanted: str) -> RunName:
        """Say good-bye to a run, or a family, and forget it."""
        if (family := self.families.named(wanted)) is not None:
            await RECORDS.run(forget_run, self._home, family.id.hex())
            return await self.families.leave(family)
        async with self._entering:
            names = {key: each.manifest.name for key, each in self.open.items()}
            names |= {key: key[:8] for key in [*self.restoring, *self.broken]}
            key = find_run(wanted, names)
            await RECORDS.run(forget_run, self._home, key)
            self.broken.pop(key, None)
            self.restoring = [run for run in self.restoring if run != key]
            self.lacking.pop(key, None)
            if key in self.open:
                await self.open[key].close(for_good=True)
                await self._forget_data(self.open.pop(key))
            await reloading.forget_rest(self._home.run_folder(key))
        asyncio.get_running_loop().call_later(10.0, sweep)  # seconds: then nothing of it goes on
        return {"run": key, "name": names[key]}

    async def close(self) -> None:
        """Say good-bye to all runs; LocalError, when all are ended and saved, if some did not end well."""
        self._closing = True
        await self.families.close()
        self.data.close()
        async with self._entering:
            failed = await end_all(list(self.open.values()))
        if failed:
            raise LocalError("; ".join(failed))

    def link(self, wanted: str) -> RunLink:
        """The link by which others join a run of ours, as of now."""
        run = self.families.named(wanted) or self.find(wanted)
        own = self._network.addresses()
        link = link_to(run, own)
        untold = [each for each in left_out(link, own) if not is_loopback(each)] + [*self._network.untold_addresses]
        return {"run": run.id.hex(), "name": run.manifest.name, "link": link, "untold": untold}

    # -- inside ---------------------------------------------------------------------------------------------

    async def _find(self, link: str) -> Introduction:
        """The introduction to a run that we are not in."""
        run, addresses = wanted(link)
        self._check_is_new(run)
        return await find_manifest(run, self._network, self._identity, addresses, partial(providers, self._discovery))

    def _load(self, train: bool, text: int = 0) -> Load:
        trainer, is_on_gpu = self._settings.trainer, has_gpu(self._settings.device)
        return Load(train, trainer.micro_batch, is_on_gpu, recompute=trainer.recompute, text=text)

    async def _lack(self, manifest: Manifest) -> str:
        """Why a run that we would train has no room here, as joining it would say; empty if it has."""
        try:
            await self._check_room_with_text(manifest, train=True)
        except NoRoom as error:
            return str(error)
        except LocalError:
            return ""  # the text here cannot be read, as is said of the data
        return ""

    async def _check_room_with_text(self, manifest: Manifest, train: bool) -> None:
        """NoRoom, also for the text here that a manifest does not measure; before it is read if all else is too much.

        LocalError if that text cannot be read.
        """
        await DISK.run(self._check_room, manifest, train)
        if text := await self.data.size(manifest.data):
            await DISK.run(self._check_room, manifest, train, text)

    def _check_room(self, manifest: Manifest, train: bool, text: int = 0) -> None:
        """NoRoom, with what would fit, unless there is as much memory and disk as the run takes."""
        check_fits(manifest, available_memory(), self._load(train, text))
        if self._settings.checkpoint_every:
            what = f"a checkpoint of the run '{manifest.name}' (--checkpoint-every 0 makes none)"
            check_disk(self._home.root, checkpoint_bytes(manifest), what)

    def _check_goes_on(self) -> None:
        if self._closing or self.paused:
            raise LocalError(self.paused or "the node is ending")

    def _check_is_new(self, run: str) -> None:
        if self.has(run):
            raise LocalError(f"this node is in the run {run} already")

    async def _enter(
        self,
        found: Introduction,
        train: bool,
        checkpoint: Checkpoint | None = None,
        kept: Kept = None,
    ) -> RunLink:
        self._check_goes_on()
        manifest, key = found.manifest, found.manifest.run_id.hex()
        data = await self._data_for(found, train)
        run = None
        if manifest.experts is None:
            with or_no_room(f"the run '{manifest.name}' is not entered"):
                run = await LONG.run(self._build, found, data, train, checkpoint, kept)
            self._check_goes_on()
        await NOTES.run(self._cache.update, found.members)  # who is killed now must find them again
        path = str(checkpoint.path) if checkpoint is not None and run is not None else ""
        joined = Joined(manifest.canonical(), found.author, found.signature, train, path)
        await RECORDS.run(remember_run, self._home, key, joined)
        if run is None:
            self.families.enter(found, train, checkpoint)
        else:
            run.start(list(found.members))
            self.open[key] = run
        log.info("in run %s (%s)", key, manifest.name)
        return self.link(key)

    async def _forget_data(self, left: Run) -> None:
        """Free the disk of the data of a run that we have left, unless another one may be about them."""
        spec = left.manifest.data
        is_wanted = any(each.manifest.data.digest == spec.digest for each in self.open.values())
        if not (self.restoring or self.broken or is_wanted or self.families.wants(spec.digest)):
            await self.data.forget(spec)

    async def _data_for(self, found: Introduction, train: bool) -> tuple[str, ...]:
        """What the worker is to read, from the members if it is not here; who does not train gives it if it is."""
        self._donors(found)
        spec = found.manifest.data
        if not train and not await self.data.has(spec):
            return ()
        return self.families.with_partition(spec, await self.data.get(spec, lambda: self._donors(found)))

    def _donors(self, found: Introduction) -> list[PeerId]:
        """Who may have a run's data: its members, whose addresses are remembered, and whoever is connected."""
        for peer, addresses in found.members.items():
            self._network.remember(peer, addresses)
        return list(dict.fromkeys([*found.members, *(link.peer for link in self._network.links())]))

    def _build(
        self, found: Introduction, data: tuple[str, ...], train: bool, checkpoint: Checkpoint | None, kept: Kept
    ) -> Run:
        """In a thread: importing torch alone takes seconds, and the network must not wait for it."""
        from shoal.node.run.opening import open_run
        from shoal.node.run.settings import RunSettings

        run_id = found.manifest.run_id
        settings = RunSettings.of(self._settings, self._home.make_run_folder(run_id.hex()), data, train, self._fault)
        return open_run(found, self._identity.signer(run_id), self._network, settings, checkpoint, kept)


# -- the end of all runs -------------------------------------------------------------------------------------------


async def end_all(runs: Sequence[Run]) -> list[str]:
    """End them; of those that did not end well, which it is and why."""
    ends = await asyncio.gather(*(run.close() for run in runs), return_exceptions=True)
    failed = [(run.manifest.name, end) for run, end in zip(runs, ends, strict=True) if end is not None]
    for name, error in failed:
        trace = None if isinstance(error, ShoalError) else error
        log.error("run %s did not end well: %s", name, error, exc_info=trace, extra={"code": "run-not-ended"})
    return [f"the run {name} did not end well: {_words(error)}" for name, error in failed]


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
