"""`shoal experts answer`, from its first to its last moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from shoal.node.asking.answering import Answering
from shoal.node.asking.sources import Node
from shoal.node.home import Home
from shoal.node.options import check_device
from shoal.node.serve.served import Choices
from shoal.node.serve.threads import use_threads
from shoal.node.signals import on_ending


def answer_until_told(
    home: Home, family: str, parts: tuple[str, ...], slots: int, each: int, device: str, threads: int
) -> None:
    """Until asked to end; LocalError if there is nothing to answer for."""
    check_device(device)
    use_threads(threads)
    answering = Answering(Node(home, family), parts, Choices(device, slots, threads=threads), min(each, slots))
    asyncio.run(_until_told(answering))


async def _until_told(answering: Answering) -> None:
    task = asyncio.ensure_future(answering.run())
    on_ending(lambda _: task.cancel())
    with suppress(asyncio.CancelledError):
        await task
