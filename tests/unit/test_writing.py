"""Texts for the page: what a process prints comes in parts, its end is told, and it is gone when nobody listens."""

from __future__ import annotations

import os
import sys
from asyncio.subprocess import Process
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.node.base.home import Home
from shoal.node.daemon import writing
from shoal.node.daemon.room import look
from shoal.node.daemon.writing import MAX_PROMPT, MOST, NICE, Writing, check, generate, usual_length
from shoal.node.manifest.manifest import Manifest, parse_manifest
from shoal.node.run.runs import killed
from shoal.protocol.base.errors import LocalError


def program(text: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time\n{text}"]


async def parts_of(text: str, prompt: str = "x") -> list[writing.Part]:
    async with aclosing(generate(program(text), prompt, {"SHOAL_HOME": "/home"}, set())) as parts:
        return [part async for part in parts if part != ("", None)]


@pytest.mark.asyncio
async def test_what_is_printed_comes_as_it_is_and_a_good_end_says_nothing() -> None:
    said = await parts_of("print(sys.stdin.read() + os.environ['SHOAL_HOME'], end='')", "zwölf ")
    assert "".join(text for text, _ in said) == "zwölf /home"
    assert [error for _, error in said if error] == []


@pytest.mark.asyncio
async def test_a_letter_that_is_cut_in_two_stays_one() -> None:
    halves = "[(sys.stdout.buffer.write(each), sys.stdout.flush(), time.sleep(0.05)) for each in (b'\\xc3', b'\\xb6')]"
    assert "".join(text for text, _ in await parts_of(halves)) == "ö"


@pytest.mark.asyncio
async def test_a_bad_end_is_told_in_the_last_words_of_the_process() -> None:
    assert await parts_of("sys.exit('a\\n\\nshoal: no room\\x1b\\n')") == [("", "no room?")]
    assert await parts_of("sys.exit(3)") == [("", "the process ended with exit status 3")]


@pytest.mark.asyncio
async def test_it_gives_way_to_others_and_is_gone_once_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BEAT", 0.01)
    waits = f"while os.nice(0) < {NICE}: time.sleep(0.01)\nprint(os.getpid(), end='', flush=True)\ntime.sleep(600)"
    async with aclosing(generate(program(waits), "x", {}, writers := set[Process]())) as parts:
        async for text, _ in parts:
            if text:
                pid = int(text)
                break
        assert {each.pid for each in writers} == {pid}, "it counts as one of the node's"
        assert await anext(parts) == ("", None), "a beat, by which a caller that is gone is noticed"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not writers


@pytest.mark.asyncio
async def test_a_pause_ends_a_text_and_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writing, "GENERATE", tuple(program("print('once', flush=True)\ntime.sleep(600)")))
    current = SimpleNamespace(current=SimpleNamespace(round=3))
    run: Any = SimpleNamespace(id=b"1", manifest=Manifest(name="a"), outer=SimpleNamespace(committed=current))
    writers, paused = set[Process](), False

    def find(wanted: str) -> Any:
        if paused:
            raise LocalError("paused: it is outside the hours")
        return run

    said: list[Any] = []
    async with aclosing(Writing(Home(tmp_path), find, writers).write("a", "x")) as parts:
        async for part in parts:
            if part["text"]:
                paused = True
                for each in writers:
                    await killed(each)
            said += [part] if part["text"] or part["error"] else []
    assert [each["text"].strip() for each in said] == ["once", ""]
    assert [each["error"] for each in said] == [None, "paused: it is outside the hours"]


@pytest.mark.asyncio
async def test_a_text_may_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BEAT", 0.01)
    monkeypatch.setattr(writing, "WITHIN", 0.05)
    assert await parts_of("time.sleep(600)") == [("", "it took longer than 0 s")]


CUSTOM = 'name = "a"\n[model]\nname = "custom"\ntensors = [{ names = ["w"], shapes = [[3]] }]\n[data]\nname = "own"'


@pytest.mark.parametrize(
    ("manifest", "prompt", "tokens", "words"),
    [
        (Manifest(name="a"), "", 10, "give a text"),
        (Manifest(name="a"), "x" * (MAX_PROMPT + 1), 10, "at most 20,000 characters"),
        (Manifest(name="a"), "x", 0, "1 to 2,000 tokens, not 0"),
        (Manifest(name="a"), "x", MOST + 1, "1 to 2,000 tokens"),
        (parse_manifest(CUSTOM), "x", 10, "the model of a writes no text"),
    ],
    ids=["nothing", "long", "none", "many", "custom"],
)
def test_what_cannot_be_written_is_refused_before_anything_is_started(
    manifest: Manifest, prompt: str, tokens: int, words: str
) -> None:
    with pytest.raises(LocalError, match=words):
        check(manifest, prompt, tokens)


@pytest.mark.parametrize(("context", "length"), [(32, None), (512, None), (1024, 200)])
def test_a_small_context_is_written_full(context: int, length: int | None) -> None:
    manifest = parse_manifest(f'name = "a"\n[model]\ncontext = {context}')
    assert usual_length(manifest) == length


def test_the_room_of_a_machine(tmp_path: Path) -> None:
    seen = look(tmp_path)
    assert 0 < seen["memory_free"] <= seen["memory_total"]
    assert 0 < seen["disk_free"] <= seen["disk_total"]
