"""A daemon's status while other peers are away, and its messages to the service manager while it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.node.daemon import service_manager as module
from shoal.node.daemon.daemon import Obstacle
from shoal.node.daemon.service_manager import ServiceManager


@pytest.mark.parametrize(
    ("first_back", "delay", "misled", "answered", "obstacle", "waits"),
    [
        (True, "not yet in the run 1f0c8a2e", False, False, "not yet in the run 1f0c8a2e", False),
        (True, None, False, False, "rejoining: nobody has answered yet", True),
        (True, None, True, False, "rejoining: nobody has answered yet", False),
        (False, "not yet in the run 1f0c8a2e", False, False, "rejoining: nobody has answered yet", False),
        (False, None, False, True, "nobody has answered yet", False),
    ],
)
def test_who_is_the_first_to_be_back_misses_nobody_yet_and_says_what_it_tried(
    first_back: bool, delay: str | None, misled: bool, answered: bool, obstacle: str, waits: bool
) -> None:
    network, reaching = (
        SimpleNamespace(links=lambda: []),
        SimpleNamespace(obstacle=lambda: "nobody has answered yet", is_misled=misled, has_answered=answered),
    )
    data = SimpleNamespace(obstacle=lambda: None)
    runs = SimpleNamespace(are_at_rest=lambda: first_back, data=data, restoring=["of our last life"])
    parts: list[Any] = [network, runs, reaching, SimpleNamespace(obstacle=lambda: delay)]
    said = Obstacle(*parts)
    assert (said.words(), said.waits()) == (obstacle, waits)


class Manager(ServiceManager):
    """A service manager that gives more time when it was asked three times."""

    pause = 0.0  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__({})
        self.asked, self.has_time = 0, asyncio.Event()

    def still_stopping(self) -> None:
        self.asked += 1
        if self.asked == 3:
            self.has_time.set()

    async def save(self) -> None:
        await self.has_time.wait()


@pytest.mark.asyncio
async def test_more_time_is_asked_for_as_long_as_runs_are_saved_and_no_longer() -> None:
    manager = Manager()
    await asyncio.wait_for(manager.extend_timeout_during(manager.save()), 10)
    assert manager.asked >= 3
    await asyncio.sleep(0)  # for the cancelled task to end
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_nobody_is_asked_to_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_END", 0.01)
    await asyncio.wait_for(Manager()._ask_for_time(), 10)
