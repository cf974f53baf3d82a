"""A bridge from asyncio to an event loop of another kind in a thread of its own (trio, which libp2p needs).

Rules:
- `start`, `call`, `post` and `join` belong to the asyncio loop; `opened` and `tell` to the other thread.
- An awaited call that is cancelled here runs to its end over there and its result is dropped: to cancel a write
  halfway would do more harm. Whoever must stop a call closes what it works on.
- What fails over there fails here with TransportError, unless it is an error of Shoal already; when the other loop
  ends, for whatever reason, so does every waiting call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from shoal.protocol.base.errors import ShoalError, TransportError

T = TypeVar("T")
Soon = Callable[..., object]  # calls a plain function in the other loop, from any thread
Spawn = Callable[..., object]  # starts a coroutine function in the other loop, from that loop


class Bridge:
    """Runs `main`, which blocks until its loop ends, in a thread; it calls `opened` once it takes calls.

    `on_end` is called in asyncio when the loop has ended, with what ended it if that was not planned.
    """

    def __init__(self, main: Callable[[], None], on_end: Callable[[Exception | None], None], name: str) -> None:
        self._main = main
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._calls: set[asyncio.Future[Any]] = set()
        self._soon: Soon | None = None
        self._spawn: Spawn | None = None
        self._failure: Exception | None = None

    async def start(self) -> None:
        """Return once the other loop takes calls; raises what `main` raised instead."""
        self._loop = asyncio.get_running_loop()
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()
        self._thread.start()
        await self._opened.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    async def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """The result of `await function(*args)` in the other loop."""
        return await self.begin(function, *args)

    def begin(self, function: Callable[..., Awaitable[T]], *args: object) -> asyncio.Future[T]:
        """The same, for who may end the wait before: whatever it is given, the outcome is what came first."""
        outcome: asyncio.Future[T] = self._loop.create_future()
        if self._ended.is_set():
            raise TransportError("the network host has stopped")
        self._calls.add(outcome)
        outcome.add_done_callback(self._calls.discard)
        self.post(self._launch, outcome, function, args)
        return outcome

    def follow(
        self, ended: Callable[[BaseException], None], function: Callable[..., Awaitable[None]], *args: object
    ) -> None:
        """Start `await function(*args)` in the other loop, which only ends by an error; `ended` hears of it here."""
        outcome: asyncio.Future[None] = self._loop.create_future()

        def tell_end(outcome: asyncio.Future[None]) -> None:
            self._calls.discard(outcome)
            ended(outcome.exception() or TransportError("it has ended"))

        outcome.add_done_callback(tell_end)
        self._calls.add(outcome)
        if self._ended.is_set():
            _fail(outcome, TransportError("the network host has stopped"))
        else:
            self.post(self._launch, outcome, function, args)

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call a plain function in the other loop, soon; nothing happens if that loop has ended."""
        if self._soon is not None:
            try:
                self._soon(function, *args)
            except RuntimeError:  # trio's RunFinishedError: the loop is gone, and what we wanted from it too
                self._soon = None

    def spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a coroutine function in the other loop, soon; it must not raise."""
        self.post(self._start, function, *args)

    async def join(self) -> None:
        """Wait for the other loop to end, and its thread with it."""
        if self._thread.ident is not None:
            await self._ended.wait()
            self._thread.join()

    # -- in the other thread --------------------------------------------------------------------------------

    def opened(self, soon: Soon, spawn: Spawn) -> None:
        """From now on the other loop takes calls."""
        self._soon, self._spawn = soon, spawn
        self.tell(self._opened.set)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """Call a plain function in the asyncio loop, soon, in the order of the calls."""
        with suppress(RuntimeError):  # the asyncio loop is closed; nobody is left to be told
            self._loop.call_soon_threadsafe(function, *args)

    def _run(self) -> None:
        try:
            self._main()
        except Exception as error:
            self._failure = error
        finally:
            self.tell(self._end)

    def _launch(self, outcome: asyncio.Future[T], function: Callable[..., Awaitable[T]], args: Any) -> None:
        self._start(self._carry, outcome, function, args)

    def _start(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._spawn is not None
        with suppress(RuntimeError):  # the other loop is about to end and starts nothing more; `_end` will tell
            self._spawn(function, *args)

    async def _carry(self, outcome: asyncio.Future[T], function: Callable[..., Awaitable[T]], args: Any) -> None:
        try:
            result = await function(*args)
        except ShoalError as error:
            self.tell(_fail, outcome, error)
        except Exception as error:
            failure = TransportError(str(error) or type(error).__name__)
            failure.__cause__ = error
            self.tell(_fail, outcome, failure)
        else:
            self.tell(_succeed, outcome, result)

    # -- back in the asyncio loop ---------------------------------------------------------------------------

    def _end(self) -> None:
        self._ended.set()
        self._opened.set()
        for outcome in self._calls:
            _fail(outcome, TransportError("the network host has stopped"))
        self._on_end(self._failure)


def _succeed(outcome: asyncio.Future[T], result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[T], error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
