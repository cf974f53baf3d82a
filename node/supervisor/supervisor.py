"""The daemon's side of a worker: one subprocess that trains, and is started again when it dies.

The supervisor holds one order at a time, and the order outlives the worker: a worker that dies is replaced,
after a back-off that doubles, unless its end is final (worker_end.py), and the new one gets the same order, with the
committed parameters and the last moments that are still in shared memory. Answers to older orders are dropped here. A
worker that hangs is killed, and replaced like one that died. No worker can take the daemon down.

A script of the user's is waited for, not started; it may be silent as long as it likes, and nobody ends it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from shoal.node.base.logs import last_line
from shoal.node.base.pools import DISK, ROUNDS
from shoal.node.ipc.link import frame
from shoal.node.ipc.messages import (
    Contribution,
    Failed,
    Finished,
    HandIn,
    Progress,
    Ready,
    Stop,
    Train,
    Trained,
    Welcome,
)
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.vectors import SharedVectors, copy_whole, mark_of
from shoal.node.ipc.worker_end import WorkerEnd, WorkerHistory
from shoal.node.supervisor import liveness
from shoal.node.supervisor.listener import WorkerListener, process_in_words, receive
from shoal.node.supervisor.liveness import Watchdog
from shoal.node.supervisor.process import (
    DISK_WITHIN,
    StartError,
    WorkerSettings,
    exit_reason,
    first_of,
    wait_for_exit,
    worker_process,
)
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.wire import Message

START_WITHIN = 300.0  # seconds from a process's start to its Hello: importing torch from a slow, cold disk
MAX_BACKOFF = 60.0


class WorkerSupervisor:
    """Keeps a worker alive while `run` runs; passes it orders and hands over its answers.

    `on_lost(ended)` is for showing and logging: the order is repeated without the daemon's help, if at all.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        on_progress: Callable[[Progress], None],
        on_contribution: Callable[[Contribution], None],
        on_trained: Callable[[], None],
        on_lost: Callable[[WorkerEnd], None],
    ) -> None:
        self.settings = settings
        self.pid: int | None = None
        self.device: str | None = None  # on which the worker trains, once it has built its model
        self.socket: Path | None = None  # where it is listened for, once it is
        self.on_sign: Callable[[], None] = lambda: None  # of life: a step or an answer, be it to an older order
        self._on_progress = on_progress
        self._on_contribution = on_contribution
        self._on_trained = on_trained
        self._on_lost = on_lost
        self._vectors = SharedVectors.create(settings.sizes)
        self._loading = asyncio.Lock()
        self._version: int | None = None  # of the vectors that are loaded
        self._orders = 0
        self._order: Train | None = None  # what the worker is to do; None: nothing, or still loading
        self._hand_in: int | None = None  # the round that was asked for early
        self._finished: Finished | None = None
        self._writer: asyncio.StreamWriter | None = None  # None: no worker to talk to
        self._failed: Failed | None = None  # what a worker has said of its own end
        self._backoff = settings.first_backoff
        self._watchdog = Watchdog()
        self._lives = WorkerHistory()
        self._stop = asyncio.Event()
        self._idle = asyncio.Event()  # nothing is left to do, or we are stopped: no worker is wanted
        self._rests = asyncio.Event()  # no worker lives, and none will
        self._ended = asyncio.Event()
        self._ended.set()

    @property
    def contribution(self) -> FloatArray:
        """What was handed in: ours from `on_contribution` until the next order that asks for a contribution."""
        return self._vectors.contribution.array

    @property
    def moments(self) -> FloatArray:
        """The inner optimizer's state (ipc/vectors.py) as of the last hand-in; ours to write before `run` only."""
        return self._vectors.moments.array

    def copied_moments(self) -> FloatArray | None:
        """A copy of them as of the last hand-in; None if there is none. In any thread."""
        return copy_whole(self._vectors.moments)

    @property
    def usual_step(self) -> float:
        """Seconds within which it usually makes a step; 0.0 while nobody knows."""
        return self._watchdog.usual

    @property
    def is_over(self) -> bool:
        """Whether it was stopped."""
        return self._stop.is_set()

    async def run(self) -> None:
        """Supervise until `stop`; belongs in the daemon's TaskGroup."""
        if self._stop.is_set():
            return
        self._ended.clear()
        try:
            await self._supervise()
        finally:
            self._vectors.close()
            self._rests.set()
            self._ended.set()

    async def _supervise(self) -> None:
        listener = await self._listen()
        self.socket = listener.path if listener is not None else None
        try:
            while listener is not None and not self._idle.is_set():
                ended = await (self._live(listener) if self.settings.program else self._host(listener))
                ended = self._lives.judge(ended)
                if not self._idle.is_set():
                    self._on_lost(ended)
                    await (self._idle.wait() if ended.is_final else self._pause())
            self._rests.set()
            await self._stop.wait()
        finally:
            if listener is not None:
                await listener.close()

    async def _listen(self) -> WorkerListener | None:
        """Where the worker is listened for; None if none is wanted before there is that."""
        making = asyncio.ensure_future(WorkerListener.listening(self.settings.folder))
        idle = asyncio.ensure_future(self._idle.wait())
        try:
            await asyncio.wait((making, idle), return_when=asyncio.FIRST_COMPLETED)
            return await making if making.done() else None
        except OSError as error:
            place = f"no socket, at which the worker could be listened for, can be made in {self.settings.folder}"
            raise LocalError(f"{place}, nor in a temporary folder: {error.strerror or error}") from error
        finally:
            for task in (making, idle):
                task.cancel()

    async def stop(self) -> None:
        """End the worker and `run`."""
        self._idle.set()
        self._stop.set()
        await self._ended.wait()
        self._vectors.close()  # where `run` was never begun

    async def retire(self, keeps_contribution: bool = False) -> None:
        """Nothing is left to train: end the worker, and give the memory of what it shared back, but its contribution.

        That goes, too, unless it is kept: the worker's weights may be shown there.
        """
        self._idle.set()
        await self._rests.wait()
        async with self._loading:
            if not self._stop.is_set():
                self.forget()
                self._version = None
                await ROUNDS.run(self._vectors.clear, keeps_contribution)

    async def train(self, order: Train, agreed: Sequence[FloatArray], answer: FloatArray | None = None) -> None:
        """Let the worker carry out `order`, which gets its number here, with these vectors; replaces the one before."""
        self._orders += 1
        order = dataclasses.replace(order, order=self._orders)
        self.forget()
        if self._hand_in != order.round or order.is_fresh:
            self._hand_in = None
        async with self._loading:
            self._vectors.loaded.array[0] = 0  # until the rest is written (ipc/vectors.py)
            if order.version != self._version or order.is_fresh:  # a state from elsewhere may be of the same round
                self._version = None
                await ROUNDS.run(self._load, agreed, answer)
                self._version = order.version
            self._vectors.loaded.array[0] = mark_of(order.order)
        if order.order == self._orders:  # else another order came while we were loading
            self._order = order
            self._send_order()

    async def finish(self, finished: Finished, agreed: Sequence[FloatArray]) -> None:
        """Tell the worker, and whoever is it later, that these vectors are the run's end."""
        self._orders += 1
        self.forget()
        async with self._loading:
            self._vectors.loaded.array[0], self._version = 0, None  # they are for no order (ipc/vectors.py)
            await ROUNDS.run(self._load, agreed, None)
        self._finished = finished
        self._send_order()

    async def unload(self) -> None:
        """Give the memory of the agreed vectors back until `train`, unless the worker may still read them."""
        async with self._loading:
            if self._order is None and self._finished is None:
                self._version = None
                self._vectors.loaded.clear()
                await ROUNDS.run(self._vectors.agreed.clear)

    def forget(self) -> None:
        """Nobody wants the answer to the order that the worker has, whenever it comes."""
        self._order = None

    def hand_in(self, round: int) -> None:
        """Ask for what the worker has of `round`, which may be nothing; `on_contribution` follows."""
        self._hand_in = round
        if self._order and self._order.round == round:
            self._send(HandIn(self._order.order))

    # -- one life of a worker -------------------------------------------------------------------------------

    async def _live(self, listener: WorkerListener) -> WorkerEnd:
        """Start a worker and talk to it until it is over; why it was."""
        self._failed, log = None, self.settings.log
        try:
            async with worker_process(self.settings, listener.path) as (process, begin):
                self.pid = process.pid
                self._watchdog.begin(asyncio.get_running_loop().time())
                ends = (
                    self._converse(process.pid, listener),
                    self._hang(),
                    wait_for_exit(process),
                    self._stop_is_wanted(),
                )
                try:
                    words = await first_of(*ends)
                finally:
                    self._hang_up()
        except StartError as error:
            return WorkerEnd(f"the worker cannot be started: {error}")
        if self._failed is not None:  # it has said so itself, and ends
            where = f" in round {self._failed.round}" if self._failed.round else ""
            mistake = self._failed.reason if self._failed.is_mistake else ""
            return WorkerEnd(f"the worker has failed{where}: {self._failed.reason}", self._failed.is_final, mistake)
        said = "" if words else await self._last_line(begin)
        return WorkerEnd(
            f"the worker {words or exit_reason(process)}{f': {said}' if said else ''}; its output is in {log}"
        )

    async def _last_line(self, begin: int) -> str:
        """What the worker has written last; empty if the disk does not answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DISK_WITHIN):
                return await DISK.run(last_line, self.settings.log, begin)
        return ""

    async def _host(self, listener: WorkerListener) -> WorkerEnd:
        """Wait for a script and talk to it until it is over; why it was."""
        self._watchdog.begin(asyncio.get_running_loop().time())
        ends = (self._converse_with_a_script(listener), self._stop_is_wanted(), self._watch())
        try:
            return WorkerEnd(await first_of(*ends))
        finally:
            self._hang_up()

    async def _converse_with_a_script(self, listener: WorkerListener) -> str:
        reader, self._writer, pid = await listener.accept(None, self._welcome(), self._vectors.descriptors)
        self.pid = pid
        words = await first_of(self._talk(reader), listener.turn_away(pid))
        return f"the script ({process_in_words(pid)}) {words or 'has gone'}"

    async def _converse(self, pid: int, listener: WorkerListener) -> str:
        try:
            async with asyncio.timeout(START_WITHIN):
                reader, self._writer, _ = await listener.accept(pid, self._welcome(), self._vectors.descriptors)
        except TimeoutError:
            return f"said nothing for {START_WITHIN:.0f} s"
        return await self._talk(reader)

    async def _talk(self, reader: asyncio.StreamReader) -> str:
        self._send_order()
        while True:
            try:
                message = await receive(reader)
            except RemoteError as error:
                return f"broke the protocol: {error}"
            except (EOFError, OSError):
                return ""
            if isinstance(message, Failed):
                self._failed = message
                return f"failed in round {message.round}: {message.reason}"
            if isinstance(message, Ready):
                self.device = message.device
                continue
            if not isinstance(message, Progress | Contribution | Trained):
                return f"broke the protocol: {type(message).__name__} is not a worker's to send"
            self._see(message)
            self.on_sign()
            if self._order is None or message.order != self._order.order:
                continue  # the answer to an older order
            if message.round != self._order.round:
                return f"broke the protocol: it was asked for round {self._order.round}, not {message.round}"
            if isinstance(message, Trained if self._order.hand_in else Contribution):
                return f"broke the protocol: {type(message).__name__} is not what its order asked for"
            self._pass_on(message)

    async def _watch(self) -> str:
        """Learn how long a script's steps take; nobody ends it, however long it is silent."""
        while True:
            self._watchdog.look(asyncio.get_running_loop().time())
            await asyncio.sleep(liveness.LOOK)

    async def _hang(self) -> str:
        """Returns once the worker makes no step any more."""
        while not self._watchdog.look(asyncio.get_running_loop().time()):
            await asyncio.sleep(liveness.LOOK)
        return f"made no step for {self._watchdog.silence:.0f} s and was killed"

    def _see(self, message: Progress | Contribution | Trained) -> None:
        if isinstance(message, Progress):
            self._watchdog.stepped()
            self._lives.stepped()
        else:
            self._watchdog.answered(message.order, message.steps if isinstance(message, Contribution) else 0)

    def _pass_on(self, message: Progress | Contribution | Trained) -> None:
        if isinstance(message, Progress):
            self._on_progress(message)
            return
        self._order = None
        self._backoff = self.settings.first_backoff
        self._on_contribution(message) if isinstance(message, Contribution) else self._on_trained()

    def _load(self, agreed: Sequence[FloatArray], answer: FloatArray | None) -> None:
        np.concatenate(agreed, out=self._vectors.agreed.array)
        if answer is not None and self._vectors.answer is not None:
            np.copyto(self._vectors.answer.array, answer)

    def _welcome(self) -> Welcome:
        own = self.settings
        return Welcome(own.manifest, own.sizes, own.threads, own.device, tuple(map(os.fsencode, own.data)), own.trainer)

    def _send_order(self) -> None:
        if self._finished is not None:
            self._send(self._finished)
        elif self._order and self._writer:
            self._watchdog.ordered(self._order.order)
            self._send(self._order)
            if self._hand_in == self._order.round:
                self._send(HandIn(self._order.order))

    def _send(self, message: Message) -> None:
        """A worker that is not there gets its order when it comes."""
        if self._writer:
            self._writer.write(frame(message))

    def _hang_up(self) -> None:
        self._send(Stop())
        if self._writer:
            self._writer.close()
        self._writer = self.pid = self.device = None

    async def _pause(self) -> None:
        if not self.settings.program:
            return  # whoever comes, and when, is the user's affair
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._backoff)
        self._backoff = min(MAX_BACKOFF, 2 * self._backoff)

    async def _stop_is_wanted(self) -> str:
        await self._idle.wait()
        return ""
