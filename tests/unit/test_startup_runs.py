"""Runs named by --create and --join are entered once, tried again after failures, and skipped if already entered."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from shoal.dht.link import format_link
from shoal.node.api.answers import Answer
from shoal.node.base.options import NodeSettings, UsageError
from shoal.node.manifest.manifest import Manifest, parse_manifest
from shoal.node.run import startup_runs
from shoal.node.run.introduction import parse_run_name
from shoal.node.run.runs import Runs
from shoal.node.run.startup_runs import StartupRuns
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId
from tests.run_kit import id_of

TEXT = 'name = "ours"\n'
MANIFEST = parse_manifest(TEXT)
RUN = id_of(MANIFEST).hex()
HERE = "/ip4/192.0.2.7/tcp/4101"
LINK = format_link(RunId(bytes.fromhex(RUN)), [HERE])


class FakeRuns:
    """Fails a number of times."""

    def __init__(self, failures: int = 0, entered: tuple[str, ...] = ()) -> None:
        self.failures, self.paused = failures, ""
        self.entered = list(entered)
        self.calls: list[tuple[str, bool]] = []
        self.answer = asyncio.Event()
        self.answer.set()

    def has(self, prefix: str) -> bool:
        return any(run.startswith(prefix) for run in self.entered)

    def has_founded(self, wanted: Manifest) -> bool:
        return self.has(id_of(wanted).hex())

    def has_run_of(self, manifest: Manifest) -> bool:
        return self.has(id_of(manifest).hex())

    async def join_at(self, addresses: Sequence[str], manifest: Manifest, train: bool) -> Answer:
        assert (list(addresses), manifest) == ([HERE], MANIFEST)
        return await self.join(id_of(manifest).hex(), train)

    async def create(self, manifest_toml: str, train: bool) -> Answer:
        return await self.join(id_of(parse_manifest(manifest_toml)).hex(), train)

    async def join(self, run: str, train: bool) -> Answer:
        self.calls.append((run, train))
        if len(self.calls) <= self.failures:
            raise LocalError("this node knows no other")
        await self.answer.wait()
        self.entered.append(parse_run_name(run).run)
        return {"name": "ours", "link": LINK}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_runs, "RETRY_FIRST", 0.001)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(TEXT)
    return path


@pytest.mark.asyncio
async def test_a_run_is_created_once(tmp_path: Path, manifest: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    settings, runs = NodeSettings(tmp_path, create=manifest, train=False), FakeRuns()
    await asyncio.wait_for(StartupRuns(settings, cast(Runs, runs)).run(), 10)
    await asyncio.wait_for(StartupRuns(settings, cast(Runs, runs)).run(), 10)  # the next start
    assert runs.calls == [(RUN, False)]
    assert caplog.messages == [f"created run ours; on another machine: shoal run join {LINK}"]


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["manifest", "id", "link"])
async def test_a_run_is_joined_as_soon_as_somebody_knows_it(tmp_path: Path, manifest: Path, way: str) -> None:
    words = {"manifest": str(manifest), "id": RUN[:8].upper(), "link": LINK}[way]
    runs = FakeRuns(failures=2)
    runs.answer.clear()
    work = StartupRuns(NodeSettings(tmp_path, bootstrap=(HERE,), join=(words,)), cast(Runs, runs))
    assert work.obstacle() is None
    working = asyncio.create_task(work.run())
    async with asyncio.timeout(10):
        while not runs.calls:
            await asyncio.sleep(0)
        words = f"a run of {manifest}" if way == "manifest" else f"the run {RUN[:8]}"
        assert work.obstacle() == f"not yet in {words}: this node knows no other"
        while len(runs.calls) < 3:
            await asyncio.sleep(0)
        assert work.obstacle() == f"not yet in {words}: entering it now", "what was is told for what is"
        runs.answer.set()
        await working
    assert runs.calls == [({"manifest": RUN, "id": RUN[:8].upper(), "link": LINK}[way], True)] * 3
    assert work.obstacle() is None


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["has_founded", "create"])
@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), MemoryError(), RuntimeError("can't start new thread")]
)
async def test_what_the_machine_lacks_for_a_while_ends_no_errand(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    runs, real, lacking = FakeRuns(), getattr(FakeRuns, where), [error, error]

    def fail_first(*args: object) -> object:
        if lacking:
            raise lacking.pop()
        return real(runs, *args)

    monkeypatch.setattr(runs, where, fail_first)
    await asyncio.wait_for(StartupRuns(NodeSettings(tmp_path, create=manifest), cast(Runs, runs)).run(), 10)
    assert runs.entered == [RUN]


@pytest.mark.asyncio
async def test_a_manifest_that_cannot_be_read_again_is_waited_for(tmp_path: Path, manifest: Path) -> None:
    runs = FakeRuns()
    work = StartupRuns(NodeSettings(tmp_path, create=manifest), cast(Runs, runs))
    manifest.rename(tmp_path / "away")
    working = asyncio.create_task(work.run())
    async with asyncio.timeout(10):
        while "no such file" not in (work.obstacle() or ""):
            await asyncio.sleep(0)
        (tmp_path / "away").rename(manifest)
        await working
    assert runs.entered == [RUN]


@pytest.mark.asyncio
async def test_a_run_by_its_link_that_we_are_in_is_not_joined_again(tmp_path: Path) -> None:
    runs = FakeRuns(entered=(RUN,))
    await asyncio.wait_for(StartupRuns(NodeSettings(tmp_path, join=(LINK,)), cast(Runs, runs)).run(), 10)
    assert runs.calls == []


def test_a_manifest_alone_says_nothing_of_whose_run_is_meant(tmp_path: Path, manifest: Path) -> None:
    with pytest.raises(UsageError, match="name a member of it with --bootstrap"):
        StartupRuns(NodeSettings(tmp_path, join=(str(manifest),)), cast(Runs, FakeRuns()))


@pytest.mark.asyncio
async def test_the_addresses_of_a_link_name_peers_too(tmp_path: Path, manifest: Path) -> None:
    runs, other = FakeRuns(entered=("ab" * 32,)), format_link(RunId(b"\xab" * 32), [HERE])
    settings = NodeSettings(tmp_path, join=(other, str(manifest)))
    await asyncio.wait_for(StartupRuns(settings, cast(Runs, runs)).run(), 10)
    assert runs.calls == [(RUN, True)]


def test_a_bad_manifest_is_said_before_anything_is_done(tmp_path: Path, manifest: Path) -> None:
    manifest.write_text("nam = 'ours'")
    with pytest.raises(LocalError, match="nearest known key is 'name'"):
        StartupRuns(NodeSettings(tmp_path, create=manifest), cast(Runs, FakeRuns()))


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["create", "join"])
async def test_who_is_paused_tries_nothing_until_it_goes_on(tmp_path: Path, manifest: Path, way: str) -> None:
    runs = FakeRuns()
    runs.paused = "paused: it is outside the hours"
    settings = NodeSettings(tmp_path, create=manifest) if way == "create" else NodeSettings(tmp_path, join=(LINK,))
    work = StartupRuns(settings, cast(Runs, runs))
    working = asyncio.create_task(work.run())
    async with asyncio.timeout(10):
        while "outside the hours" not in (work.obstacle() or ""):
            await asyncio.sleep(0)
        assert runs.calls == []
        runs.paused = ""
        await working
    assert runs.entered == [RUN]
