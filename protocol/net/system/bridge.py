"""A bridge from asyncio to another kind of event loop (trio, which libp2p needs) in a thread of its own.

Rules:
- `start`, `call`, `post` and `join` are called from the asyncio loop; `opened` and `tell` from the other thread.
- Cancelling an awaited call here does not cancel it there: it runs to its end and its result is dropped, as cancelling
  a write halfway would do more harm. To stop a call, close the object that it works on.
- An exception in the other loop is raised here as a TransportError, unless it is a ShoalError already. When the other
  loop ends, for whatever reason, every waiting call fails.
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
    """Runs `main`, which blocks until its loop ends, in a thread; `main` calls `opened` once its loop takes calls.

    `on_end` is called in asyncio when that loop has ended, with the exception that ended it, if any.
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
        """Return once the other loop takes calls; if `main` raises before that, raise the same."""
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
        """Like `call`, but returns the future, which the caller may also set; the first outcome counts."""
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
        """Run `await function(*args)` in the other loop until it fails; `ended(error)` is then called here."""
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
        """Schedule a plain function in the other loop; does nothing if that loop has ended."""
        if self._soon is not None:
            try:
                self._soon(function, *args)
            except RuntimeError:  # trio's RunFinishedError: that loop has ended
                self._soon = None

    def spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Schedule a coroutine function in the other loop; it must not raise."""
        self.post(self._start, function, *args)

    async def join(self) -> None:
        """Wait until the other loop and its thread have ended."""
        if self._thread.ident is not None:
            await self._ended.wait()
            self._thread.join()

    # -- in the other thread --------------------------------------------------------------------------------

    def opened(self, soon: Soon, spawn: Spawn) -> None:
        """Called by `main`: its loop takes calls from now on."""
        self._soon, self._spawn = soon, spawn
        self.tell(self._opened.set)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """Schedule a plain function in the asyncio loop; functions run in the order of the calls."""
        with suppress(RuntimeError):  # the asyncio loop is closed
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
        with suppress(RuntimeError):  # the other loop is about to end; `_end` fails the waiting calls
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
