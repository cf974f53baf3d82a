"""Supervises a worker: a subprocess that trains, and is started again when it ends.

The supervisor holds one order at a time, which outlives the worker. A worker that ends is replaced, after a back-off
that doubles, unless its end is final (worker_end.py). The new one gets the same order, with the committed parameters
and the last moments, which are still in shared memory. Answers to older orders are dropped. A worker that hangs is
killed and replaced. No worker can take the daemon down. A measurement of the validation loss is ordered once: a new
worker does not repeat it, as it may be what has ended the last one.

If the worker is a script of the user's, the supervisor waits for it, and neither starts nor ends it, however long it is
silent.
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
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.ipc.link import frame
from shoal.node.ipc.messages import (
    Contribution,
    Failed,
    Finished,
    HandIn,
    Hurry,
    Progress,
    Ready,
    Stop,
    Train,
    Trained,
    Validated,
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
from shoal.node.supervisor.validation import mistake_in
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.wire import Message

START_WITHIN = 300.0  # seconds from the start of a process to its Hello: torch may come from a slow, cold disk
MAX_BACKOFF = 60.0  # seconds


class WorkerSupervisor:
    """Keeps a worker alive while `run` runs; sends it orders and passes its answers on.

    `on_lost` only serves status and log: the supervisor itself repeats the order with the next worker, if there is one.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        on_progress: Callable[[Progress], None],
        on_contribution: Callable[[Contribution], None],
        on_trained: Callable[[], None],
        on_lost: Callable[[WorkerEnd], None],
        on_sign: Callable[[], None] = lambda: None,
        on_validated: Callable[[int, Validated], None] = lambda version, validated: None,
    ) -> None:
        """`on_sign` is called for each step and answer, even to older orders.

        `on_validated` gets the round of the state that was measured, too, and no loss if the order was replaced.
        """
        self.settings = settings
        self.pid: int | None = None  # of a process until it has ended, of a script while it is connected
        self.scripts: set[ProcessIdentity] = set()  # that have connected; they go on when we hang up
        self.device: str | None = None  # the device of the worker, once it has built its model
        self.socket: Path | None = None  # the path of the socket for workers, once it listens
        self._on_progress = on_progress
        self._on_contribution = on_contribution
        self._on_trained = on_trained
        self._on_lost = on_lost
        self._on_sign = on_sign
        self._on_validated = on_validated
        self._vectors = SharedVectors.create(settings.sizes)
        self._loading = asyncio.Lock()
        self._version: int | None = None  # the round whose state is in the shared vectors; None: none
        self._orders = 0
        self._order: Train | None = None  # the current order; None: there is none, or its vectors are being loaded
        self._sent = 0  # the newest order that a worker has got
        self._measuring: dict[int, Train] = {}  # orders that ask for a figure which has not come yet, by number
        self._hand_in: int | None = None  # the round for which an early hand-in was requested
        self._hurry: int | None = None  # the round before which nothing is to be measured
        self._finished: Finished | None = None
        self._writer: asyncio.StreamWriter | None = None  # None: no worker is connected
        self._failed: Failed | None = None  # the worker's own report of its failure
        self._backoff = settings.first_backoff
        self._watchdog = Watchdog()
        self._history = WorkerHistory()
        self._stop = asyncio.Event()
        self._idle = asyncio.Event()  # no worker is wanted: nothing is left to do, or we are stopped
        self._wanted = asyncio.Event()  # one is wanted again, or we are stopped
        self._rests = asyncio.Event()  # no worker runs, and none will be started
        self._ended = asyncio.Event()
        self._ended.set()

    @property
    def contribution(self) -> FloatArray:
        """The contribution (d,): valid from `on_contribution` until the next order that asks for a contribution."""
        return self._vectors.contribution.array

    @property
    def moments(self) -> FloatArray:
        """The vector `moments` (ipc/vectors.py) as of the last hand-in; it may be written only before `run`."""
        return self._vectors.moments.array

    def copied_moments(self) -> FloatArray | None:
        """A copy of `moments` as of the last hand-in; None if there are none. May be called in any thread."""
        return copy_whole(self._vectors.moments)

    @property
    def usual_step(self) -> float:
        """Seconds within which the worker usually makes a step; 0.0 while unknown."""
        return self._watchdog.usual

    @property
    def is_over(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    async def run(self) -> None:
        """Supervise until `stop`."""
        if self._stop.is_set():
            self._rests.set()
            return
        self._ended.clear()
        try:
            await self._supervise()
        finally:
            self._vectors.close()
            self._rests.set()
            self._ended.set()

    async def _supervise(self) -> None:
        listener: WorkerListener | None = None
        try:
            while not self._stop.is_set():
                while not self._idle.is_set():
                    if listener is None and (listener := await self._listen()) is None:
                        break  # none is wanted any more
                    self.socket = listener.path
                    await self._have_worker(listener)
                self._rests.set()
                await self._wanted.wait()
                self._wanted.clear()
        finally:
            if listener is not None:
                await listener.close()

    async def _have_worker(self, listener: WorkerListener) -> None:
        """One worker, until it ends, and the pause before the next one."""
        ended = await (self._run_process(listener) if self.settings.program else self._run_script(listener))
        ended = self._history.judge(ended)
        if not self._idle.is_set():
            self._on_lost(ended)
            await (self._idle.wait() if ended.is_final else self._pause())

    async def _listen(self) -> WorkerListener | None:
        """The listening socket for the worker; None if `_idle` is set first."""
        making = asyncio.ensure_future(WorkerListener.listening(self.settings.folder))
        idle = asyncio.ensure_future(self._idle.wait())
        try:
            await asyncio.wait((making, idle), return_when=asyncio.FIRST_COMPLETED)
            return await making if making.done() else None
        except OSError as error:
            place = f"no socket, at which the worker could be listened for, can be made in {self.settings.folder}"
            raise LocalError(
                f"{place}, nor in a temporary folder: {error.strerror or error}", code="system-refused"
            ) from error
        finally:
            for task in (making, idle):
                task.cancel()

    async def stop(self) -> None:
        """End the worker and `run`."""
        self._idle.set()
        self._stop.set()
        self._wanted.set()
        await self._ended.wait()
        self._vectors.close()  # where `run` was never begun

    async def rest(self) -> None:
        """End the worker, and start no other; the shared vectors stay until `stop`. A script is only hung up on."""
        self._idle.set()
        await self._rests.wait()

    async def retire(self, keeps_contribution: bool = False) -> None:
        """Nothing is left to train: end the worker, and return the memory of the shared vectors to the system.

        `keeps_contribution` spares that vector, in which the worker's weights may be shown.
        """
        await self.rest()
        async with self._loading:
            if not self._stop.is_set():
                self.forget()
                self._version = None
                await ROUNDS.run(self._vectors.clear, keeps_contribution)

    def wake(self) -> None:
        """There is something to train again, after `retire` has ended."""
        if not self._stop.is_set():
            self._idle.clear()
            self._rests.clear()
            self._wanted.set()

    async def train(self, order: Train, agreed: Sequence[FloatArray], answer: FloatArray | None = None) -> None:
        """Give the worker a new order, which is numbered here, with the vectors to load; it replaces the one before."""
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
        if order.order == self._orders:  # else a newer order came while we were loading
            self._order, self._finished = order, None
            self._send_order()

    async def finish(self, finished: Finished, agreed: Sequence[FloatArray]) -> None:
        """Tell the worker, and any later one, that the run is finished with these vectors as the result."""
        self._orders += 1
        self.forget()
        async with self._loading:
            self._vectors.loaded.array[0], self._version = 0, None  # they are for no order (ipc/vectors.py)
            await ROUNDS.run(self._load, agreed, None)
        self._finished = finished
        self._send_order()

    async def unload(self) -> None:
        """Return the memory of `agreed` to the system until `train`, unless the worker may still read it."""
        async with self._loading:
            if self._order is None and self._finished is None:
                self._version = None
                self._vectors.loaded.clear()
                await ROUNDS.run(self._vectors.agreed.clear)

    def forget(self) -> None:
        """Drop the current order: its answer will be ignored."""
        self._order = None

    def hand_in(self, round: int) -> None:
        """Request an early hand-in for `round`; `on_contribution` follows, perhaps with nothing trained."""
        self._hand_in = round
        if self._order and self._order.round == round:
            self._send(HandIn(self._order.order))

    def hurry(self, round: int) -> None:
        """Have the worker begin the steps of `round`, if it still measures a loss before them."""
        self._hurry = round
        if self._order and self._order.round == round and self._order.validates:
            self._send(Hurry(self._order.order))

    # -- one worker process -------------------------------------------------------------------------------

    async def _run_process(self, listener: WorkerListener) -> WorkerEnd:
        """Start a worker and talk to it until it ends; returns why."""
        self._failed, log = None, self.settings.log
        try:
            async with worker_process(self.settings, listener.path) as (process, begin):
                self.pid = process.pid
                self._watchdog.begin(asyncio.get_running_loop().time())
                ends = (
                    self._converse(process.pid, listener),
                    self._wait_for_hang(),
                    wait_for_exit(process),
                    self._stop_is_wanted(),
                )
                try:
                    words = await first_of(*ends)
                finally:
                    self._hang_up()
        except StartError as error:
            return WorkerEnd(f"the worker cannot be started: {error}")
        finally:
            self.pid = None
        if self._failed is not None:  # the worker has reported it, and ends
            where = f" in round {self._failed.round}" if self._failed.round else ""
            mistake = self._failed.reason if self._failed.is_mistake else ""
            return WorkerEnd(f"the worker has failed{where}: {self._failed.reason}", self._failed.is_final, mistake)
        said = "" if words else await self._last_line(begin)
        return WorkerEnd(
            f"the worker {words or exit_reason(process)}{f': {said}' if said else ''}; its output is in {log}"
        )

    async def _last_line(self, begin: int) -> str:
        """The last line that the worker has logged; empty if the disk does not answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DISK_WITHIN):
                return await DISK.run(last_line, self.settings.log, begin)
        return ""

    async def _run_script(self, listener: WorkerListener) -> WorkerEnd:
        """Wait for a script and talk to it until it goes; returns why."""
        self._watchdog.begin(asyncio.get_running_loop().time())
        ends = (self._converse_with_a_script(listener), self._stop_is_wanted(), self._watch())
        try:
            return WorkerEnd(await first_of(*ends))
        finally:
            self._hang_up()
            self.pid = None

    async def _converse_with_a_script(self, listener: WorkerListener) -> str:
        reader, self._writer, pid = await listener.accept(None, self._welcome(), self._vectors.descriptors)
        self.pid = pid
        self.scripts |= {ProcessIdentity.of(pid)} if pid else set()
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
            if isinstance(message, Validated):
                if mistake := self._take_figure(message):
                    return f"broke the protocol: {mistake}"
                continue
            if not isinstance(message, Progress | Contribution | Trained):
                return f"broke the protocol: {type(message).__name__} is not a worker's to send"
            self._observe(message)
            self._on_sign()
            if self._order is None or message.order != self._order.order:
                continue  # the answer to an older order
            if message.round != self._order.round:
                return f"broke the protocol: it was asked for round {self._order.round}, not {message.round}"
            if isinstance(message, Trained if self._order.hand_in else Contribution):
                return f"broke the protocol: {type(message).__name__} is not what its order asked for"
            self._pass_on(message)

    async def _watch(self) -> str:
        """Measure how long a script's steps take, without ever ending it."""
        while True:
            self._watchdog.look(asyncio.get_running_loop().time())
            await asyncio.sleep(liveness.LOOK)

    async def _wait_for_hang(self) -> str:
        """Return once the worker hangs."""
        while not self._watchdog.look(asyncio.get_running_loop().time()):
            await asyncio.sleep(liveness.LOOK)
        return f"made no step for {self._watchdog.silence:.0f} s and was killed"

    def _observe(self, message: Progress | Contribution | Trained) -> None:
        if isinstance(message, Progress):
            self._watchdog.stepped()
            self._history.stepped()
        else:
            self._watchdog.answered(message.order, message.steps if isinstance(message, Contribution) else 0)

    def _take_figure(self, message: Validated) -> str:
        """Pass on what came of a measurement that was asked for; returns the mistake in it, or an empty string.

        Of an order that has been replaced meanwhile only the time counts that it took.
        """
        asked = self._measuring.pop(message.order, None)
        if asked is None:
            return ""  # nobody has asked, or it is answered already
        if mistake := mistake_in(message, asked):
            return mistake
        is_current = self._order is not None and self._order.order == asked.order
        if self._order is not None and is_current:
            self._watchdog.measured()
            self._order = dataclasses.replace(self._order, validates=0)
        self._on_validated(asked.version, message if is_current else dataclasses.replace(message, loss=None))
        return ""

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
            if self._order.order == self._sent or self._order.round == self._hurry:
                self._order = dataclasses.replace(self._order, validates=0)
            self._sent = self._order.order
            self._watchdog.ordered(self._order.order)
            self._send(self._order)
            if self._order.validates:
                self._measuring[self._order.order] = self._order
            if self._hand_in == self._order.round:
                self._send(HandIn(self._order.order))

    def _send(self, message: Message) -> None:
        """Send a message if a worker is connected; one that connects later gets the current order then."""
        if self._writer:
            self._writer.write(frame(message))

    def _hang_up(self) -> None:
        self._send(Stop())
        if self._writer:
            self._writer.close()
        self._writer = self.device = None
        self._measuring.clear()

    async def _pause(self) -> None:
        if not self.settings.program:
            return  # the user decides when to start a script
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._backoff)
        self._backoff = min(MAX_BACKOFF, 2 * self._backoff)

    async def _stop_is_wanted(self) -> str:
        await self._idle.wait()
        return ""
