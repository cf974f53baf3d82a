"""Paints for many at once: who waits when a call begins is in it, and the loop goes on meanwhile.

Rules:
- Only pictures of the same steps and guidance share a call; a call has at most AT_ONCE of them. A picture's noise is
  its own, so what comes of a request does not depend on who else has asked, but for the rounding of sums.
- What waits is bounded (`Busy` beyond it). Whoever hangs up is forgotten at once while it waits, and is out of a call
  from its next step on; a call that nobody waits for any more is given up, and so is any when the server stops.
- A call has the experts that the gallery shows when it begins, whatever comes or goes meanwhile.
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
from shoal.node.diffusion.gallery import Gallery, PicturePanel
from shoal.node.diffusion.mixture import Mixture, noise
from shoal.node.inference.engine.engine import LONGEST_RETRY, STOPPED, Busy
from shoal.node.inference.scorer import as_shoal_error
from shoal.protocol.base.errors import ShoalError

AT_ONCE = 64  # pictures


@dataclass(frozen=True, slots=True, eq=False)
class Painted:
    """What came of an order."""

    pictures: Tensor  # (count, P)
    version: str  # of the experts


@dataclass(slots=True, eq=False)
class Wish:
    """An order, and who waits for it."""

    order: Order
    future: asyncio.Future[Painted]
    is_gone: bool = False  # written by the loop, read by the thread


@dataclass(frozen=True, slots=True)
class PaintLoad:
    """How much there is to do, and how much was done since the start."""

    busy: int  # pictures that are being painted
    waiting: int  # pictures
    finished: int  # pictures that were painted
    broken: int  # that were begun, and were not: nobody waited any more, or it failed
    calls: int
    steps: int  # of pictures, each counted
    seconds: float  # that the steps took


class Painter:
    """Made and called in the loop; what computes is in a thread."""

    def __init__(self, gallery: Gallery, waiting: int) -> None:
        """`waiting` is how many pictures may wait."""
        self._gallery, self.most = gallery, waiting
        self._waiting: deque[Wish] = deque()
        self._painting: Sequence[Wish] = ()
        self._changed = asyncio.Event()
        self._last = 1.0  # seconds that the last call took
        self._begun = self._finished = self._calls = 0
        self._steps, self._seconds = 0, 0.0  # written by the thread
        self._is_over = False
        self._task = asyncio.create_task(self._live(), name="painting")

    def load(self) -> PaintLoad:
        """How it stands."""
        busy, waiting = _pictures(self._painting), _pictures(self._waiting)
        broken = self._begun - self._finished - busy
        return PaintLoad(busy, waiting, self._finished, broken, self._calls, self._steps, self._seconds)

    async def paint(self, order: Order) -> Painted:
        """`Busy` if too many wait; LocalError once stopped."""
        if self._is_over:
            raise STOPPED
        waiting = _pictures(self._waiting)
        if waiting + order.count > self.most:
            raise Busy(min(LONGEST_RETRY, max(1, math.ceil((waiting / AT_ONCE + 1) * self._last))))
        wish = Wish(order, asyncio.get_running_loop().create_future())
        self._waiting.append(wish)
        self._changed.set()
        try:
            return await wish.future
        finally:
            wish.is_gone = True
            with suppress(ValueError):  # it is in a call
                self._waiting.remove(wish)

    async def stop(self) -> None:
        """Tell all that it is over; the step that is under way is waited for."""
        self._is_over = True
        self._changed.set()
        await self._task

    async def _live(self) -> None:
        while not self._is_over:
            self._painting = self._next()
            if self._painting:
                await self._call(self._painting)
            else:
                self._changed.clear()
                await self._changed.wait()
        _fail((*self._painting, *self._waiting), STOPPED)

    async def _call(self, batch: Sequence[Wish]) -> None:
        """Paint, and tell those who wait; not who is left when the server stops."""
        began = time.monotonic()
        self._begun += _pictures(batch)
        self._calls += 1
        panel = self._gallery.panel
        try:
            painted = await ANSWERS.run(self._paint, panel, batch)
        except Exception as error:  # of the experts' own code, out of memory: these are lost, the server is not
            _fail(batch, as_shoal_error(error))
            return
        for wish, pictures in painted:
            if not wish.future.done():
                self._finished += len(pictures)
                wish.future.set_result(Painted(pictures, panel.version))
        if painted:
            self._last = time.monotonic() - began

    def _next(self) -> list[Wish]:
        """Those who have waited longest, and whoever can be painted with them; they wait no more."""
        alive = [wish for wish in self._waiting if not wish.future.done()]
        batch, size = list[Wish](), 0
        for wish in alive:
            has_room = not batch or size + wish.order.count <= AT_ONCE
            if has_room and _kind(wish) == _kind(alive[0]):
                batch.append(wish)
                size += wish.order.count
        self._waiting = deque(wish for wish in alive if wish not in batch)
        return batch

    def _paint(self, panel: PicturePanel, batch: Sequence[Wish]) -> list[tuple[Wish, Tensor]]:
        """In a thread: the pictures of those who have stayed; none of anybody's if the server stops."""
        canvas = Canvas(panel.mixture, [wish.order for wish in batch], panel.spec.context)
        while not canvas.is_done:
            wanted = [not wish.is_gone for wish in batch]
            if self._is_over or not any(wanted):
                return []
            canvas.keep(wanted)
            batch = list(compress(batch, wanted))
            began = time.monotonic()
            canvas.step()
            self._seconds += time.monotonic() - began
            self._steps += canvas.count
        return list(zip(batch, canvas.pictures(), strict=True))


def _kind(wish: Wish) -> tuple[int, float]:
    """What those of one call have in common."""
    return wish.order.steps, wish.order.guidance


def _pictures(wishes: Iterable[Wish]) -> int:
    """Those that somebody waits for."""
    return sum(wish.order.count for wish in wishes if not wish.future.done())


def _fail(wishes: Iterable[Wish], error: ShoalError) -> None:
    for wish in wishes:
        if not wish.future.done():
            wish.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class Order:
    """What a request wants."""

    wanted: int  # the class
    count: int
    seed: int
    steps: int
    guidance: float


class Canvas:
    """For one thread."""

    def __init__(self, mixture: Mixture, orders: Sequence[Order], pixels: int) -> None:
        """The orders' steps and guidance must be the same; `pixels` is how many a picture has."""
        self._mixture, self._orders = mixture, list(orders)
        seeds = [(order.seed, number) for order in orders for number in range(order.count)]
        self._x = noise(seeds, pixels).to(mixture.device)
        self._ahead = deque(spans(orders[0].steps))

    @property
    def count(self) -> int:
        """Pictures that are on it."""
        return len(self._x)

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return not self._ahead

    def keep(self, wanted: Sequence[bool]) -> None:
        """Go on with those of the orders that are still wanted, at least one, in their order."""
        if not all(wanted):
            rows = [each for order, kept in zip(self._orders, wanted, strict=True) for each in [kept] * order.count]
            self._x = self._x[torch.tensor(rows, device=self._x.device)]
            self._orders = list(compress(self._orders, wanted))

    def step(self) -> None:
        """The next one."""
        classes = [order.wanted for order in self._orders for _ in range(order.count)]
        field = self._mixture.guided(torch.tensor(classes, device=self._x.device), self._orders[0].guidance)
        self._x = step(field, self._x, *self._ahead.popleft())

    def pictures(self) -> tuple[Tensor, ...]:
        """(count, P) from -1 to 1 for each order that was kept, on the CPU."""
        sizes = [order.count for order in self._orders]
        parts: tuple[Tensor, ...] = torch.split(self._x.clamp(-1, 1).cpu(), sizes)
        return parts
