"""The runs that this node is in: created, joined, left, and entered again after a restart.

Rules:
- One run is entered or left at a time.
- A run is on disk before we enter it and until we leave it, so a restart forgets none. It is opened again as it was,
  never created a second time: its creator, too, goes on with the votes that it has written down.
- While the node is paused all runs are at rest, as after a stop, and none is entered. One that could not be written to
  disk stays in memory, and that is tried again.
- A run is shown as restoring until it is open again; one that cannot be opened is shown as failed, with the reason,
  until it is left. One that does not fit into memory now is tried again, as other programs may end.
- Whether a run fits into memory is checked before any part of it is built.
- torch is loaded with the first run, not before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from shoal.dht.link import format_link, left_out
from shoal.node.api.answers import CreatedRun, FoundRun, LeftRun, Preview, RunLink, UnsavedRun
from shoal.node.api.errors import UnknownRun, find_run
from shoal.node.base.devices import has_gpu
from shoal.node.base.fault_injection import FaultTrigger
from shoal.node.base.home import Home
from shoal.node.base.logs import warn
from shoal.node.base.malloc import sweep
from shoal.node.base.options import NodeSettings
from shoal.node.base.pools import DISK, LONG, NOTES, RECORDS
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.base.room import NoRoom, available_memory, check_disk, or_no_room
from shoal.node.experts.families import Families
from shoal.node.manifest.fitting import Load, check_fits, checkpoint_bytes
from shoal.node.manifest.manifest import Introduction, Manifest, Sign, parse_manifest
from shoal.node.peers.bandwidth_probe import find_line
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.listings import providers
from shoal.node.peers.remembered import Joined, PeerCache, forget_run, remember_run, remembered_runs
from shoal.node.run import reloading
from shoal.node.run.founding import (
    check_begins,
    check_tokens,
    first_weights,
    forget_founded,
    mark_founded,
    new_run,
    resolve_origin,
    unmark_founded,
)
from shoal.node.run.introduction import describe, find_manifest, link_to, parse_run_name
from shoal.node.run.meters import Tally
from shoal.node.run.same_manifest import is_of, live_runs, runs_at
from shoal.node.training.data.supply import GIB, Supply
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.shortages import in_words, is_temporary
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.genesis import NONCE_SIZE
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import is_loopback
from shoal.protocol.net.system.identity import Identity

if TYPE_CHECKING:
    from shoal.node.experts.family import Family
    from shoal.node.run.run import Run
    from shoal.node.training.checkpoint.read import Checkpoint

LOOK = 0.5  # seconds between two looks at whether a pause is over
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
        """Open runs are kept in `open_runs`; `on_linked` gets the addresses of each link by which we joined."""
        self.open = open_runs
        self.restoring = remembered_runs(home)  # runs from before the restart that are not open yet
        self.names = reloading.names(home, identity, self.restoring)  # of all runs, also closed ones, if known
        self.broken: dict[str, str] = {}  # runs that could not be opened again, and why
        self.restore_obstacles: dict[str, str] = {}  # runs that cannot be restored yet, and why
        self.paused = ""  # why no run is entered, in a sentence; empty if the node is not paused
        limit = round(settings.data_limit * GIB)
        self.data = Supply(home.data, settings.data, limit, settings.share_data, network.call)
        self.families = Families(self, home, identity, network, discovery)
        self.tally = Tally()
        self._settings, self._home, self._identity = settings, home, identity
        self._network, self._discovery = network, discovery
        self._cache, self._on_linked = cache, on_linked
        self._fault = fault
        self._entering = asyncio.Lock()
        self._closing = False
        self._unsaved: dict[str, Run] = {}  # paused runs that could not be written to disk
        self.writers: set[Process] = set()  # processes that write texts with a run's model
        self._scripts: set[ProcessIdentity] = set()  # of the user, that have trained a run of ours
        self._warned: dict[str, str] = {}  # the code of the last warning about each run that cannot be restored yet

    def get(self, run: RunId | None) -> Run | None:
        """The open run of this id, if we are in it."""
        return self.open.get(run.hex()) if run is not None else None

    def find(self, wanted: str) -> Run:
        """The open run that a person names; UnknownRun if there is none, LocalError if it is still to be entered."""
        names = self._known()
        try:
            run = self.open.get(find_run(wanted, names))
        except UnknownRun:
            if all(key in self.names for key in self.restoring):
                raise
            run = None  # one whose name is not known yet may be meant
        if run is None:
            words = "this node's runs are still to be entered again, as after each start: ask again in a while"
            raise LocalError(self.paused or words, code="ending" if self.paused else "not-ready")
        return run

    def _known(self) -> dict[str, str]:
        """The names of the open runs and of those that are to be entered; parts of ids where names are not known."""
        waiting = {key: self.names.get(key, key[:8]) for key in self.restoring}
        return waiting | {key: each.manifest.name for key, each in self.open.items()}

    def has(self, prefix: str) -> bool:
        """Whether we are in a run with this id or prefix, open or not."""
        known = [*self.open, *self.families.open, *self.restoring, *self.broken]
        return any(key.startswith(prefix.lower()) for key in known)

    def has_founded(self, wanted: Manifest) -> bool:
        """Whether we are in a run that we have founded of this manifest, with its data filled in."""

        def is_ours(found: Introduction) -> bool:
            return found.genesis.author == self._identity.peer and found.manifest.completes(wanted)

        return reloading.remembers(self._home, self._identity, is_ours)

    def has_run_of(self, manifest: Manifest) -> bool:
        """Whether we are in a run of this manifest, whoever has founded it."""
        return reloading.remembers(self._home, self._identity, lambda found: found.manifest.completes(manifest))

    @property
    def all(self) -> list[Run | Family]:
        """All open runs, and the families."""
        return [*self.open.values(), *self.families.open.values()]

    def are_at_rest(self) -> bool:
        """Whether all runs are over, or were kept when all nodes stopped and no other member is back yet."""
        is_all_open = self.open and not self.restoring and not self.broken
        return bool(is_all_open) and all(run.is_resting or run.is_finished for run in self.open.values())

    # -- entering and leaving -------------------------------------------------------------------------------

    async def restore(self, seeds: Sequence[PeerId]) -> None:
        """Opens the runs again that we were in; `seeds` are peers that were seen last time."""
        for run in list(self.restoring):
            async with self._entering:
                if run not in self.restoring or self.paused:
                    continue  # it was left meanwhile, or has to wait
                try:
                    with or_no_room(f"opening the run {run[:8]} again"):
                        await self._keep(run)
                        await self._restore(run, seeds)
                    if run not in self.open and run not in self.families.open:
                        continue  # the node was paused meanwhile
                    log.info("in run %s again", run)
                except (ShoalError, OSError, MemoryError) as error:
                    if self.paused or getattr(error, "code", "") == "ending":
                        continue  # the node was paused meanwhile, perhaps for a moment, or is ending
                    is_unreached = isinstance(error, TransportError)  # no peer that has its data is reachable
                    if is_unreached or is_temporary(error) or run in self._unsaved:
                        words = _unsaved(in_words(error)) if run in self._unsaved else in_words(error)
                        self._await(run, "run-waits" if is_unreached else "no-room", words)
                        continue
                    self.broken[run] = in_words(error)
                    log.error("cannot be in run %s again: %s", run, error, extra={"code": "run-not-restored"})
                self.restoring.remove(run)
                self.restore_obstacles.pop(run, None)
                self._warned.pop(run, None)

    def _await(self, run: str, code: str, words: str) -> None:
        """The run cannot be opened yet. A warning is repeated only if its code changes: amounts differ each time."""
        if self._warned.get(run) != code:
            warn(log, code, f"cannot be in run {run} again yet: {words}; trying again")
        self._warned[run] = code
        self.restore_obstacles[run] = words

    async def keep_restoring(self, seeds: Sequence[PeerId]) -> None:
        """Until cancelled: retries runs for which there was no room, and those that failed later for lack of it."""
        while True:
            await asyncio.sleep(RETRY)
            await self._set_aside()
            await self.save_again()
            if self.restore_obstacles:
                await self.restore(seeds)

    async def _set_aside(self) -> None:
        """Ends runs that failed for a temporary shortage, so that they are opened again as after a restart."""
        for key, run in list(self.open.items()):
            if run.may_be_opened_again:
                async with self._entering:
                    if self.open.get(key) is run:
                        self._note_scripts()
                        await end_all({key: run})
                        del self.open[key]
                        self.restoring.append(key)
                        self.restore_obstacles[key] = run.failure

    @property
    def unsaved(self) -> list[UnsavedRun]:
        """The runs that were left for a pause and could not be written to disk."""
        return [
            {"run": key, "name": run.manifest.name, "words": self.restore_obstacles.get(key, "")}
            for key, run in self._unsaved.items()
        ]

    async def save_again(self) -> dict[str, str]:
        """Tries again to write paused runs to disk for which there was no room; why it fails, by the name of a run."""
        failed = {}
        for run, unsaved in list(self._unsaved.items()):
            async with self._entering:
                try:
                    with or_no_room(f"keeping the run {run[:8]}"):
                        await self._keep(run)
                    self.restore_obstacles.pop(run, None)
                except (ShoalError, OSError, MemoryError) as error:
                    failed[unsaved.manifest.name] = in_words(error)
                    self.restore_obstacles[run] = _unsaved(in_words(error))
        return failed

    async def _keep(self, run: str) -> None:
        """Writes a paused run to disk that could not be written; ShoalError or OSError if it still cannot be."""
        if run not in self._unsaved:
            return
        try:
            await self._unsaved[run].keep()
        except (ShoalError, OSError, MemoryError):
            raise
        except Exception:  # a mistake of ours, which is the same at each try
            log.exception("the run %s cannot be kept", run, extra={"code": "run-not-ended"})
        del self._unsaved[run]

    async def _restore(self, run: str, seeds: Sequence[PeerId]) -> None:
        found, joined = await RECORDS.run(reloading.recall, self._home, self._identity, run, seeds)
        check_fits(
            found.manifest, available_memory(), self._load(joined.trains, await self.data.size(found.manifest.data))
        )
        came_with = await reloading.load_checkpoint_again(joined.checkpoint)
        await self._enter(found, joined.trains, came_with)

    @property
    def devices_are_free(self) -> bool:
        """Whether no worker of ours runs, nor a script that has trained a run of ours, which only its user ends."""
        return self.processes() == [os.getpid()]

    def processes(self) -> list[int]:
        """The processes of this node: the daemon, its workers, and scripts that are or were connected."""
        self._note_scripts()
        workers = {run.training.pid or 0 for run in self.open.values() if run.training is not None} - {0}
        helpers = {each.pid for each in self.writers} | {each.pid for each in self._scripts}
        return [os.getpid(), *sorted(workers | helpers)]

    def _note_scripts(self) -> None:
        """Remembers the scripts of the open runs, also for when these are closed, and forgets those that have ended."""
        for run in self.open.values():
            self._scripts |= run.training.scripts if run.training is not None else set()
        self._scripts = {each for each in self._scripts if each.is_here()}

    async def free_devices(self) -> None:
        """Ends all workers and texts that are being written, before `pause`."""
        self._note_scripts()
        await asyncio.gather(*(run.free_device() for run in self.open.values()), *map(killed, self.writers))

    async def pause(self) -> None:
        """Ends all runs, and keeps them for `restore`; `paused` must be set before, to the reason."""
        ended = list(self.families.open)
        await self.families.close()
        async with self._entering:
            ended += [*self.families.open, *self.open]
            await self.families.close()  # one that was being entered
            failed = await end_all(self.open)
            self._unsaved |= {key: self.open[key] for key in failed}
            self.restore_obstacles |= {key: _unsaved(why) for key, why in failed.items()}
            self.open.clear()
            self.restoring += [key for key in ended if key not in self.restoring]

    async def lookup(self, manifest: str) -> list[FoundRun]:
        """The runs of a manifest that are known here: those that we are in, and those to which others introduce us."""
        wanted = (await self.data.named(parse_manifest(manifest))).digest
        ours = [self._our_row(each) for each in self.all if is_of(each.manifest, wanted)]
        others = await live_runs(wanted, self._network, self._discovery, self._introduced)
        return ours + [_row(each) for each in others if not self.has(each.run.hex())]

    def _our_row(self, run: Run | Family) -> FoundRun:
        author, members, round = run.genesis.author, len(run.others()) + 1, run.pace[0]
        whole = self.link(run.id.hex())
        return {
            "run": whole["run"],
            "name": whole["name"],
            "author": author,
            "members": members,
            "round": round,
            "link": whole["link"],
            "joined": True,
        }

    def sign(self, manifest: Manifest, nonce: str = "") -> Introduction:
        """A new run of a complete manifest, with us for its author; without a `nonce`, in hex, that is random."""
        return new_run(manifest, self._identity, bytes.fromhex(nonce) or secrets.token_bytes(NONCE_SIZE))

    async def create(self, manifest: str, train: bool, checkpoints: Sequence[str] = (), nonce: str = "") -> CreatedRun:
        """Founds a run, as its first member; it goes on from the checkpoints in these folders, if any are given.

        The answer lists files of the person that are not in the run's data (`left_out`), if there are any.
        """
        self._check_is_open()  # before work that takes minutes
        if re.fullmatch(rf"([0-9a-f]{{{2 * NONCE_SIZE}}})?", nonce) is None:
            raise LocalError(f"a nonce is {2 * NONCE_SIZE} hexadecimal digits", code="bad-value")
        wanted = parse_manifest(manifest)
        if wanted.model.is_complete:  # else checked once it is complete
            await self._check_room_with_text(wanted, train)
        wanted = await self.data.named(wanted)
        created = await self._create(wanted, train, checkpoints, partial(self.sign, nonce=nonce))
        left_out = self.data.left_out(wanted.data)
        return cast(CreatedRun, {**created, "left_out": left_out} if left_out else created)

    async def _create(self, manifest: Manifest, train: bool, checkpoints: Sequence[str], sign: Sign) -> RunLink:
        seeds = [loaded for each in checkpoints if (loaded := await reloading.load_checkpoint(each)) is not None]
        if seeds or manifest.model.is_complete:
            await check_tokens(manifest, self.data)
            manifest, loaded = await resolve_origin(manifest, seeds, self.data, self.families)
            return await self.found(sign(manifest), train, loaded)
        weights, me = self._settings.trainer.folders, self._identity.peer
        check = partial(self._check_room, train=train, text=await self.data.size(manifest.data))
        found, loaded = await first_weights(manifest, self.data, weights, self._home, sign, me, check)
        try:
            return await self.found(found, train, loaded)
        except BaseException:
            await DISK.run(forget_founded, self._home, found)
            raise

    async def found(self, found: Introduction, train: bool, loaded: Checkpoint | None) -> RunLink:
        """Founds the run that we have signed, which goes on from the checkpoint `loaded`, if there is one.

        LocalError if we have founded it before, which only a repeated nonce makes possible.
        """
        check_begins(found.manifest)
        key = found.run.hex()
        async with self._entering:
            self._check_is_new(key)
            await RECORDS.run(mark_founded, self._home, key)
            try:
                await reloading.forget_log(self._home.run_folder(key))
                return await self._enter(found, train, loaded, is_founding=True)
            except BaseException:
                if not self.has(key):
                    await RECORDS.run(unmark_founded, self._home, key)
                raise

    async def preview(self, link: str) -> Preview:
        """What joining a run would need, from its link or id; nothing is joined or kept."""
        found = await self._find(link)
        data, _ = await asyncio.gather(
            self.data.standing(found.manifest.data, self._donors(found)), find_line(self._network, found.members)
        )
        line = within(self._settings, self._network.bandwidth.claim())
        return await LONG.run(describe, found, data, await self._room_problem(found.manifest), line)

    async def join(self, link: str, train: bool, checkpoint: str = "", of: Manifest | None = None) -> RunLink:
        """Joins a run, from its link or id; with the run's origin in the folder `checkpoint` nothing is downloaded.

        UnknownRun if it is none `of` that manifest.
        """
        self._check_is_open()
        loaded = await reloading.load_checkpoint(checkpoint)
        found = await self._find(link)  # may take long: other runs may be entered or left meanwhile
        if of is not None and not found.manifest.completes(of):
            raise UnknownRun(f"the run {link} is none of the manifest '{of.name}', though a peer says so")
        await self._check_room_with_text(found.manifest, train)
        async with self._entering:
            self._check_is_new(found.run.hex())
        await self._download(found, train)  # may take hours, so it is outside the lock
        async with self._entering:
            self._check_is_new(found.run.hex())
            await reloading.forget_log(self._home.run_folder(found.run.hex()))
            entered = await self._enter(found, train, loaded)
        self._on_linked(parse_run_name(link).addresses)
        return entered

    async def join_at(self, addresses: Sequence[str], manifest: Manifest, train: bool) -> RunLink:
        """Joins the run of this manifest in which the peers at these addresses are, and no others are asked for it."""
        found = await runs_at(addresses, manifest.digest, self._network)
        where = f"at {', '.join(addresses)}"
        if not found:
            raise UnknownRun(f"nobody {where} is in a run of the manifest '{manifest.name}' yet")
        if len(found) > 1:
            raise LocalError(
                f"the peers {where} are in {len(found)} runs of the manifest '{manifest.name}': give the link or id of "
                f"one of them: {', '.join(run.hex() for run in found)}",
                code="ambiguous-run",
            )
        return await self.join(found[0].hex(), train, of=manifest)

    def move(self) -> None:
        """Our addresses have changed: tells the members of all runs."""
        for run in self.open.values():
            run.driver.move(self._network.addresses())

    async def leave(self, wanted: str) -> LeftRun:
        """Leaves a run or a family, and forgets it."""
        if (family := self.families.named(wanted)) is not None:
            await RECORDS.run(forget_run, self._home, family.id.hex())
            return await self.families.leave(family)
        async with self._entering:
            names = self._known() | {key: self.names.get(key, key[:8]) for key in self.broken}
            key = find_run(wanted, names)
            await RECORDS.run(forget_run, self._home, key)
            self.broken.pop(key, None)
            self.restoring = [run for run in self.restoring if run != key]
            self.restore_obstacles.pop(key, None)
            self._unsaved.pop(key, None)
            self._note_scripts()
            left: LeftRun = {"run": key, "name": names[key]}
            if key in self.open:
                await self.open[key].close(for_good=True)
                if stuck := self.open[key].stuck_without_us:
                    warn(log, "vote-lost", stuck)
                    left["stuck"] = stuck
                await self._forget_data(self.open.pop(key))
            try:
                await reloading.forget_log(self._home.run_folder(key))
            except LocalError as error:  # it is left all the same, and who enters it again tries once more
                warn(log, "rest-not-removed", str(error))
        asyncio.get_running_loop().call_later(10.0, sweep)  # seconds: by then all tasks of the run have ended
        return left

    async def close(self) -> None:
        """Ends all runs; LocalError, once all are ended and saved, if some did not end well."""
        self._closing = True
        await self.families.close()
        self.data.close()
        async with self._entering:
            failed = await end_all(self.open)
        named = [(self.open[key].manifest.name, why) for key, why in failed.items()]
        named += (await self.save_again()).items()
        if named:
            words = (f"the run {name} did not end well: {why}" for name, why in named)
            raise LocalError("; ".join(words), code="run-failed")

    def link(self, wanted: str) -> RunLink:
        """The link by which others can join a run of ours now."""
        run = self.families.named(wanted) or self.find(wanted)
        own, networks = self._network.addresses(), self._network.own_networks
        link = link_to(run, own, networks)
        own += self._network.untold_addresses
        untold = [each for each in left_out(link, own, networks) if not is_loopback(each)]
        return {"run": run.id.hex(), "name": run.manifest.name, "link": link, "untold": untold}

    # -- inside ---------------------------------------------------------------------------------------------

    async def _find(self, link: str) -> Introduction:
        """The introduction to a run that we are not in."""
        named = parse_run_name(link)
        self._check_is_new(named.run)
        return await self._introduced(*named)

    async def _introduced(self, run: str, addresses: Sequence[str] = (), anchor: Anchor | None = None) -> Introduction:
        known = partial(providers, self._discovery)
        return await find_manifest(run, self._network, self._identity, addresses, known, anchor)

    def _load(self, train: bool, text: int = 0) -> Load:
        trainer, is_on_gpu = self._settings.trainer, has_gpu(self._settings.device)
        return Load(train, trainer.micro_batch, is_on_gpu, recompute=trainer.recompute, text=text)

    async def _room_problem(self, manifest: Manifest) -> str:
        """Why there is no room here to train a run, with the words of `join`; empty if there is room."""
        try:
            await self._check_room_with_text(manifest, train=True)
        except NoRoom as error:
            return str(error)
        except LocalError:
            return ""  # the text here cannot be read, which `DataStanding` reports
        return ""

    async def _check_room_with_text(self, manifest: Manifest, train: bool) -> None:
        """Checks room for the run, and then with the text here, whose size a manifest may not have.

        NoRoom if it does not fit; LocalError if the text cannot be read.
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

    def _check_is_open(self) -> None:
        """LocalError if no run may be entered now."""
        if self._closing or self.paused:
            raise LocalError(self.paused or "the node is ending", code="node-paused" if self.paused else "ending")

    def _check_is_new(self, run: str) -> None:
        if self.has(run):
            raise LocalError(f"this node is in the run {run} already", code="already-in-run")

    async def _enter(
        self,
        found: Introduction,
        train: bool,
        checkpoint: Checkpoint | None = None,
        *,
        is_founding: bool = False,
    ) -> RunLink:
        self._check_is_open()
        manifest, key = found.manifest, found.run.hex()
        data = await self._data_for(found, train)
        run = None
        if manifest.experts is None:
            with or_no_room(f"the run '{manifest.name}' is not entered"):
                run = await LONG.run(self._build, found, data, train, checkpoint, is_founding)
            self._check_is_open()
        await NOTES.run(self._cache.update, found.members)  # before `joined`: a restart must find them
        path = str(checkpoint.path) if checkpoint is not None and run is not None else ""
        joined = Joined(found.genesis, train, path, found.anchor)
        await RECORDS.run(remember_run, self._home, key, joined)
        self.names[key] = manifest.name
        if run is None:
            self.families.enter(found, train, checkpoint)
        elif self.paused:  # since a moment ago: its worker would take a device that is to be free
            self.restoring += [key] if key not in self.restoring else []
            addresses, networks = self._network.addresses(), self._network.own_networks
            link = format_link(found.run, addresses, networks)
            return {"run": key, "name": manifest.name, "link": link, "untold": []}
        else:
            run.start(list(found.members))
            self.open[key] = run
        log.info("in run %s (%s)", key, manifest.name)
        return self.link(key)

    async def _forget_data(self, left: Run) -> None:
        """Deletes the data of a run that we have left, unless another run may need them."""
        spec = left.manifest.data
        is_wanted = any(each.manifest.data.digest == spec.digest for each in self.open.values())
        if not (self.restoring or self.broken or is_wanted or self.families.wants(spec.digest)):
            await self.data.forget(spec)

    async def _data_for(self, found: Introduction, train: bool) -> tuple[str, ...]:
        """The paths of the run's data, downloaded if needed; without training none, or what is here, for donating."""
        self._donors(found)
        spec = found.manifest.data
        if not train and not await self.data.has(spec):
            return ()
        return self.families.with_partition(spec, await self.data.get(spec, lambda: self._donors(found)))

    async def _download(self, found: Introduction, train: bool) -> None:
        """Gets the run's data, also over pauses, which interrupt it; LocalError if the node ends."""
        while True:
            try:
                await self._data_for(found, train)
                if not self.paused:
                    return
            except LocalError as error:
                if self._closing or error.code != "ending":
                    raise
            while self.paused and not self._closing:
                await asyncio.sleep(LOOK)

    def _donors(self, found: Introduction) -> list[PeerId]:
        """Peers that may have a run's data: its members, whose addresses are remembered, and all connected peers."""
        for peer, addresses in found.members.items():
            self._network.remember(peer, addresses)
        return list(dict.fromkeys([*found.members, *(link.peer for link in self._network.links())]))

    def _build(
        self,
        found: Introduction,
        data: tuple[str, ...],
        train: bool,
        checkpoint: Checkpoint | None,
        is_founding: bool,
    ) -> Run:
        """Builds the run, before it is started; in a thread, as importing torch alone takes seconds.

        `checkpoint` is the run's origin.
        """
        from shoal.node.run.agreed_run import AgreedRun
        from shoal.node.run.replica_run import ReplicaRun
        from shoal.node.run.settings import RunSettings
        from shoal.node.training.checkpoint.keep import Keeping

        node = self._settings
        settings = RunSettings(
            folder=self._home.make_run_folder(found.run.hex()),
            threads=node.threads,
            data=data,
            trains=train,
            keeping=Keeping(node.checkpoint_every, node.checkpoint_keep),
            fault=self._fault,
            device=node.device,
            trainer=node.trainer,
            tally=self.tally,
        )
        kind = ReplicaRun if found.manifest.method.has_replicas else AgreedRun
        signer = self._identity.signer(found.run)
        return kind(found, signer, self._network, settings, checkpoint, is_founding=is_founding)


def _row(found: Introduction) -> FoundRun:
    """A run that others are in."""
    addresses = [address for each in found.members.values() for address in each]
    return {
        "run": found.run.hex(),
        "name": found.manifest.name,
        "author": found.genesis.author,
        "members": found.present,
        "round": found.round,
        "link": format_link(found.run, addresses),
        "joined": False,
    }


async def killed(process: Process) -> None:
    """Kill a process, unless it has ended."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


# -- the end of all runs -------------------------------------------------------------------------------------------


async def end_all(runs: Mapping[str, Run]) -> dict[str, str]:
    """Ends the runs; why some did not end well, in words, by their ids."""
    names = {key: run.manifest.name for key, run in runs.items()}
    ends = await asyncio.gather(*(run.close() for run in runs.values()), return_exceptions=True)
    failed = {key: end for key, end in zip(names, ends, strict=True) if end is not None}
    for key, error in failed.items():
        trace = None if isinstance(error, ShoalError) else error
        log.error("run %s did not end well: %s", names[key], error, exc_info=trace, extra={"code": "run-not-ended"})
    return {key: _words(error) for key, error in failed.items()}


def within(settings: NodeSettings, line: tuple[int, int]) -> tuple[int, int]:
    """What a line carries up and down within the owner's limits, in bytes a second; 0 where nothing is known."""
    known = zip(line, (settings.max_up, settings.max_down), strict=True)
    up, down = (min(filter(None, (rate, limit)), default=0) for rate, limit in known)
    return up, down


def _unsaved(why: str) -> str:
    return f"its state is only in memory until it can be written: {why}"


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
