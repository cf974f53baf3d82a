"""The process that answers for experts: one that it cannot use, or that fails, costs the others nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.node.base.home import Home
from shoal.node.inference.remote.answering import process as module
from shoal.node.inference.remote.answering import server as server_module
from shoal.node.inference.remote.answering.process import Answering
from shoal.node.inference.remote.answering.sharing import SlotAccounts
from shoal.node.inference.remote.sources import File, Node, Part, Sources
from shoal.node.inference.served import ServeOptions
from shoal.node.manifest.manifest import parse_manifest
from shoal.protocol.base.ids import digest
from shoal.protocol.messages.experts import Addition, AskExpert, ExpertSays
from tests.integration.asking_kit import TINY, text_of
from tests.unit.asking.kit import ANNA, ME
from tests.unit.asking.test_proxy import board, until
from tests.unit.serve.ensemble.kit import theta, write_file

MANIFEST = parse_manifest(text_of(TINY, "prose", "code"))
GOOD, BAD = digest("good"), digest("bad")


class Known(Node):
    """A node that is made up; its socket is the folder's."""

    looks = 0

    def sources(self) -> Sources:
        Known.looks += 1
        folder = self.home.root
        files = {"prose": (GOOD, folder / "good.safetensors"), "code": (BAD, folder / "bad.safetensors")}
        parts = tuple(
            Part(
                part=name,
                model=TINY,
                files=(File(file=file.hex(), round=1, finished=True, path=str(path), peers=()),),
            )
            for name, (file, path) in files.items()
        )
        return Sources(MANIFEST, ME, str(folder / "experts.sock"), parts)


@pytest.mark.asyncio
async def test_what_fails_is_said_once_and_what_answers_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.02)
    monkeypatch.setattr(server_module, "TIDY", 0.02)
    write_file(tmp_path / "good.safetensors", theta(1, TINY), TINY)
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors at all")
    failures, tidy = [ZeroDivisionError("a mistake of ours")], SlotAccounts.tidy

    def once(accounts: SlotAccounts, now: float) -> None:
        if failures:
            raise failures.pop()
        tidy(accounts, now)

    monkeypatch.setattr(SlotAccounts, "tidy", once)
    question = AskExpert(GOOD, 1, (), (Addition(1, 0, (5,), True),))
    async with board(tmp_path) as (proxy, _):
        answering = asyncio.create_task(
            Answering(Known(Home(tmp_path), "fam"), (), ServeOptions(device="cpu", slots=2), 2).run()
        )
        await until(lambda: proxy.answers(GOOD) and not failures)
        async with asyncio.timeout(20):
            while not isinstance(await proxy.on_call(ANNA, question), ExpertSays):
                await asyncio.sleep(0.005)
        assert not proxy.answers(BAD)
        looks = Known.looks
        await until(lambda: Known.looks > looks + 3)
        answering.cancel()
        await asyncio.wait([answering])
    assert caplog.text.count("code of round 1 cannot answer") == 1
    assert caplog.text.count("an expert does not answer any more") == 1
