"""Addresses dialled side by side: the first that answers is taken, and none is waited for in vain."""

from __future__ import annotations

import asyncio
import gc

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.net.peers import dialing
from shoal.protocol.net.peers.dialing import by_turns, first_answer


class Places:
    """Addresses that answer, refuse, or swallow everything."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.tried: list[str] = []
        self.given_up: list[str] = []

    async def dial(self, address: str) -> str:
        self.tried.append(address)
        match self.answers[address]:
            case "hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.given_up.append(address)
            case "refuse":
                raise TransportError("connection refused")
            case "bug":
                raise ZeroDivisionError
        return address


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "STAGGER", 0.01)


@pytest.mark.asyncio
async def test_the_first_answer_is_taken_and_the_rest_is_given_up() -> None:
    places = Places(a="hang", b="refuse", c="good", d="good")
    assert await first_answer(lambda: "abcd", places.dial) == "c"
    await asyncio.sleep(0)
    assert places.tried == ["a", "b", "c"]
    assert places.given_up == ["a"]


@pytest.mark.asyncio
async def test_who_fails_in_the_moment_of_the_first_answer_leaves_no_complaint() -> None:
    """Python logs the error of a task for which nobody has asked when the task is collected."""
    complaints, all_tried = list[str](), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

    async def dial(address: str) -> str:
        if address == "h":
            all_tried.set()
        await all_tried.wait()
        if address == "h":
            return address
        raise TransportError("connection refused")

    assert await first_answer(lambda: "abcdefgh", dial) == "h"
    await asyncio.sleep(0)
    gc.collect()
    assert not complaints


@pytest.mark.asyncio
async def test_all_reasons_are_told() -> None:
    places = Places(a="refuse", b="refuse")
    with pytest.raises(TransportError, match="a: connection refused; b: connection refused"):
        await first_answer(lambda: "ab", places.dial)


@pytest.mark.asyncio
async def test_an_address_that_comes_late_is_tried_as_well() -> None:
    places, known = Places(a="hang", b="good"), ["a"]
    waiting = asyncio.create_task(first_answer(lambda: known, places.dial))
    while places.tried != ["a"]:
        await asyncio.sleep(0)
    known.append("b")
    assert await asyncio.wait_for(waiting, 10) == "b"


@pytest.mark.asyncio
async def test_without_an_address_there_is_no_answer() -> None:
    with pytest.raises(TransportError):
        await first_answer(list, Places().dial)


@pytest.mark.asyncio
async def test_our_own_mistakes_are_not_taken_for_the_networks() -> None:
    with pytest.raises(ZeroDivisionError):
        await first_answer(lambda: "ab", Places(a="bug", b="good").dial)


@pytest.mark.parametrize(
    ("given", "turns"),
    [
        ([], ()),
        (["/ip4/a"], ("/ip4/a",)),
        (["/ip6/a", "/ip6/b", "/ip4/c", "/ip4/d", "/ip4/e"], ("/ip6/a", "/ip4/c", "/ip6/b", "/ip4/d", "/ip4/e")),
        (["/ip4/a", "/ip6/b", "/ip4/a"], ("/ip4/a", "/ip6/b")),
    ],
)
def test_families_take_turns(given: list[str], turns: tuple[str, ...]) -> None:
    assert by_turns(given) == turns
