"""Generates pictures for many clients: requests that wait when a batch begins share it, and a thread computes it.

Rules:
- A batch has at most AT_ONCE pictures, all of the same steps and guidance. The noise of a picture does not depend on
  the batch, so neither does the result of a request, except for rounding.
- Waiting requests are bounded (`Busy` beyond that). A client that disconnects is dropped from the queue at once, and
  from a batch at its next step; a batch without clients is given up, and so is any when the server stops.
- A batch uses the experts that the source has when it begins, whatever changes meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from shoal.node.base.pools import ANSWERS
from shoal.node.diffusion.flow import spans, step
from shoal.node.diffusion.mixture import Mixture, noise
from shoal.node.diffusion.picture_source import PicturePanel, PictureSource
from shoal.node.inference.engine.engine import LONGEST_RETRY, STOPPED, Busy
from shoal.node.inference.scorer import as_shoal_error
from shoal.protocol.base.errors import ShoalError

AT_ONCE = 64  # pictures


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedPictures:
    """The result of a request."""

    pictures: Tensor  # (count, P)
    version: str  # of the experts


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request, and the future of the client that waits for it."""

    request: SamplingRequest
    future: asyncio.Future[GeneratedPictures]
    is_gone: bool = False  # the client has left; written by the loop, read by the thread


@dataclass(frozen=True, slots=True)
class PictureLoad:
    """The engine's work now, and since the start; all but the last three are numbers of pictures."""

    busy: int
    waiting: int
    finished: int
    broken: int  # begun, but not finished: the client has left, or the batch has failed
    calls: int  # batches
    steps: int  # of the sampler, counted for each picture
    seconds: float  # that the steps took


class PictureEngine:
    """Lives in the event loop; only `_compute` runs in a thread."""

    def __init__(self, source: PictureSource, waiting: int) -> None:
        """`waiting` is how many pictures may wait."""
        self._source, self.most = source, waiting
        self._waiting: deque[PendingRequest] = deque()
        self._running: Sequence[PendingRequest] = ()
        self._changed = asyncio.Event()
        self._last = 1.0  # seconds that the last batch took
        self._begun = self._finished = self._calls = 0
        self._steps, self._seconds = 0, 0.0  # written by the thread
        self._is_over = False
        self._task = asyncio.create_task(self._live(), name="pictures")

    def load(self) -> PictureLoad:
        """The load now."""
        busy, waiting = _pictures(self._running), _pictures(self._waiting)
        broken = self._begun - self._finished - busy
        return PictureLoad(busy, waiting, self._finished, broken, self._calls, self._steps, self._seconds)

    async def generate(self, request: SamplingRequest) -> GeneratedPictures:
        """The pictures of a request; `Busy` if too many wait, LocalError once stopped."""
        if self._is_over:
            raise STOPPED
        waiting = _pictures(self._waiting)
        if waiting + request.count > self.most:
            raise Busy(min(LONGEST_RETRY, max(1, math.ceil((waiting / AT_ONCE + 1) * self._last))))
        pending = PendingRequest(request, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        self._changed.set()
        try:
            return await pending.future
        finally:
            pending.is_gone = True
            with suppress(ValueError):  # it is in a batch
                self._waiting.remove(pending)

    async def stop(self) -> None:
        """Fails all requests, and waits for the step that is being computed."""
        self._is_over = True
        self._changed.set()
        await self._task

    async def _live(self) -> None:
        while not self._is_over:
            self._running = self._next_batch()
            if self._running:
                await self._run_batch(self._running)
            else:
                self._changed.clear()
                await self._changed.wait()
        _fail((*self._running, *self._waiting), STOPPED)

    async def _run_batch(self, batch: Sequence[PendingRequest]) -> None:
        """Computes a batch and resolves its futures, except for those that are left when the server stops."""
        began = time.monotonic()
        self._begun += _pictures(batch)
        self._calls += 1
        panel = self._source.panel
        try:
            results = await ANSWERS.run(self._compute, panel, batch)
        except Exception as error:  # in the experts, or out of memory: the batch is lost, the server goes on
            _fail(batch, as_shoal_error(error))
            return
        for pending, pictures in results:
            if not pending.future.done():
                self._finished += len(pictures)
                pending.future.set_result(GeneratedPictures(pictures, panel.version))
        if results:
            self._last = time.monotonic() - began

    def _next_batch(self) -> list[PendingRequest]:
        """Takes the request that has waited longest from the queue, and those that can share a batch with it."""
        alive = [pending for pending in self._waiting if not pending.future.done()]
        batch, size = list[PendingRequest](), 0
        for pending in alive:
            has_room = not batch or size + pending.request.count <= AT_ONCE
            if has_room and _kind(pending) == _kind(alive[0]):
                batch.append(pending)
                size += pending.request.count
        self._waiting = deque(pending for pending in alive if pending not in batch)
        return batch

    def _compute(self, panel: PicturePanel, batch: Sequence[PendingRequest]) -> list[tuple[PendingRequest, Tensor]]:
        """In a thread: the pictures of the requests whose clients have stayed; none if the server stops."""
        sampling = SamplingBatch(panel.mixture, [pending.request for pending in batch], panel.spec.context)
        while not sampling.is_done:
            wanted = [not pending.is_gone for pending in batch]
            if self._is_over or not any(wanted):
                return []
            sampling.keep(wanted)
            batch = list(compress(batch, wanted))
            began = time.monotonic()
            sampling.step()
            self._seconds += time.monotonic() - began
            self._steps += sampling.count
        return list(zip(batch, sampling.pictures(), strict=True))


def _kind(pending: PendingRequest) -> tuple[int, float]:
    """What the requests of one batch must have in common."""
    return pending.request.steps, pending.request.guidance


def _pictures(requests: Iterable[PendingRequest]) -> int:
    """The number of pictures that clients still wait for."""
    return sum(pending.request.count for pending in requests if not pending.future.done())


def _fail(requests: Iterable[PendingRequest], error: ShoalError) -> None:
    for pending in requests:
        if not pending.future.done():
            pending.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What a client asks for."""

    label: int  # the class
    count: int
    seed: int
    steps: int
    guidance: float


class SamplingBatch:
    """The state of the sampler for several requests; for one thread."""

    def __init__(self, mixture: Mixture, requests: Sequence[SamplingRequest], pixels: int) -> None:
        """The requests' steps and guidance must be the same; `pixels` is the number of pixels of a picture."""
        self._mixture, self._requests = mixture, list(requests)
        seeds = [(request.seed, number) for request in requests for number in range(request.count)]
        self._x = noise(seeds, pixels).to(mixture.device)
        self._ahead = deque(spans(requests[0].steps))

    @property
    def count(self) -> int:
        """The number of pictures."""
        return len(self._x)

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return not self._ahead

    def keep(self, wanted: Sequence[bool]) -> None:
        """Drops the requests that are not wanted any more; at least one must be left."""
        if not all(wanted):
            rows = [kept for request, kept in zip(self._requests, wanted, strict=True) for _ in range(request.count)]
            self._x = self._x[torch.tensor(rows, device=self._x.device)]
            self._requests = list(compress(self._requests, wanted))

    def step(self) -> None:
        """Makes the next step of the sampler."""
        classes = [request.label for request in self._requests for _ in range(request.count)]
        field = self._mixture.guided(torch.tensor(classes, device=self._x.device), self._requests[0].guidance)
        self._x = step(field, self._x, *self._ahead.popleft())

    def pictures(self) -> tuple[Tensor, ...]:
        """(count, P) from -1 to 1 for each request that was kept, on the CPU."""
        sizes = [request.count for request in self._requests]
        parts: tuple[Tensor, ...] = torch.split(self._x.clamp(-1, 1).cpu(), sizes)
        return parts
