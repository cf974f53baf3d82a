"""A node's runs at its start: those of its last life are known before they are open."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.dht.link import RunLink, format_link, parse_link
from shoal.node.api.errors import UnknownRun
from shoal.node.base.home import Home
from shoal.node.base.kept import KeptVote
from shoal.node.base.options import NodeSettings
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.base.room import AvailableMemory, Memory, NoRoom
from shoal.node.manifest.manifest import DataSpec, Introduction, parse_manifest
from shoal.node.peers.listings import providers
from shoal.node.peers.remembered import Joined, PeerCache, remember_run, remembered_runs
from shoal.node.run import reloading
from shoal.node.run.founding import forget_founded, mark_founded, new_run, unmark_founded
from shoal.node.run.log_store import FOLDER, LogStore
from shoal.node.run.run import Run
from shoal.node.run.runs import Runs
from shoal.node.run.view import restoring_row, rows_of_closed
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.multiaddrs import OwnNetworks
from shoal.protocol.messages.doctor import Carried, Carry
from shoal.protocol.messages.genesis import Genesis
from shoal.protocol.net.measure.link import Link
from shoal.protocol.net.measure.rates import Bandwidth
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity
from tests.run_kit import NONCE, id_of, introduced
from tests.unit.rounds_kit import A, B

FIRST, SECOND = "ab" * 32, "0d" * 32


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home").create()
    for run in (FIRST, SECOND):
        remember_run(home, run, Joined(Genesis(b"no manifest", PeerId("anna"), b"", b""), True, "", None))
    return home


AROUND: dict[str, Any] = {
    "addresses": tuple,
    "own_networks": OwnNetworks(()),
    "untold_addresses": (),
    "bandwidth": Bandwidth(),
}


def made(home: Home, known: list[str] | None = None, around: Mapping[str, Any] | None = None, **settings: Any) -> Runs:
    """`known` hears the addresses of links; `around` is what the network says."""
    said: dict[str, Any] = {
        "call": None,
        "links": list,
        "remember": lambda peer, addresses: None,
        **AROUND,
        **(around or {}),
    }
    network = cast(Network, SimpleNamespace(**said))
    identity, cache, discovery = Identity.generate(), PeerCache(home.peers), cast(Any, SimpleNamespace(used=None))
    on_linked = known.extend if known is not None else lambda addresses: None
    return Runs(NodeSettings(home.root, **settings), home, identity, network, cache, None, discovery, {}, on_linked)


@pytest.mark.asyncio
async def test_a_remembered_run_is_being_restored_until_it_is_open_or_broken(home: Home) -> None:
    runs = made(home)
    assert set(runs.restoring) == {FIRST, SECOND}
    assert runs.has(FIRST[:12])
    await runs.restore([])
    assert runs.restoring == []
    assert set(runs.broken) == {FIRST, SECOND}


@pytest.mark.asyncio
async def test_a_run_may_be_left_before_it_is_open_again(home: Home) -> None:
    runs = made(home)
    assert (await runs.leave(FIRST[:8]))["run"] == FIRST
    assert remembered_runs(home) == [SECOND]
    await runs.restore([])
    assert set(runs.broken) == {SECOND}


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), TransportError("nobody has its data")])
async def test_a_run_that_cannot_be_opened_for_what_passes_is_tried_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    runs, lacking = made(home), True

    def recall(*_: object) -> None:
        raise error if lacking else LocalError("damaged")

    monkeypatch.setattr(reloading, "recall", recall)
    await runs.restore([])
    assert (set(runs.restoring), set(runs.restore_obstacles), runs.broken) == ({FIRST, SECOND}, {FIRST, SECOND}, {})
    lacking = False
    await runs.restore([])
    assert (runs.restoring, runs.restore_obstacles, set(runs.broken)) == ([], {}, {FIRST, SECOND})


@pytest.mark.asyncio
async def test_each_kind_of_reason_why_runs_wait_is_warned_of_once(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs, full = made(home), OSError(errno.EMFILE, "Too many open files")

    def fail(error: Exception) -> Callable[..., None]:
        def recall(*_: object) -> None:
            raise error

        return recall

    unreached = TransportError("nobody has all of it")
    unreached.__cause__ = OSError(errno.EHOSTUNREACH, "No route to host")
    for error in (full, full, TransportError("nobody has it"), unreached, full):
        monkeypatch.setattr(reloading, "recall", fail(error))
        await runs.restore([])
    codes = [getattr(each, "code", "") for each in caplog.records if FIRST in each.getMessage()]
    assert codes == ["no-room", "run-waits", "no-room"]


@pytest.mark.asyncio
async def test_a_run_that_has_failed_for_what_passes_is_opened_again(home: Home) -> None:
    runs, closed = made(home), []

    async def close() -> None:
        closed.append(True)

    full = SimpleNamespace(
        may_be_opened_again=True, failure="the disk is full", close=close, manifest=MANIFEST, training=None
    )
    bug = SimpleNamespace(may_be_opened_again=False, failure="KeyError", close=close, manifest=MANIFEST, training=None)
    runs.open |= {"aa": cast(Run, full), "bb": cast(Run, bug)}
    await runs._set_aside()
    assert (list(runs.open), runs.restore_obstacles, closed) == (["bb"], {"aa": "the disk is full"}, [True])
    assert "aa" in runs.restoring


def test_its_row_says_so(home: Home) -> None:
    row = restoring_row(FIRST)
    assert (row["run"], row["phase"], row["failure"]) == (FIRST, "restoring", None)


TEXT = 'name = "ours"\n'
MANIFEST = parse_manifest(TEXT)


def with_log(home: Home, run: str) -> Path:
    folder = home.make_run_folder(run) / FOLDER
    folder.mkdir()
    return folder


def test_what_is_kept_of_a_run_is_seen_from_outside(home: Home) -> None:
    for run in (FIRST, SECOND):
        with_log(home, run)  # others can go on with the second one
    LogStore(home.run_folder(FIRST)).mark_kept(KeptVote(3, ("anna",)))
    assert home.kept_runs() == [FIRST]
    assert home.kept_vote(FIRST) == KeptVote(3, ("anna",))


@pytest.mark.parametrize("where", ["restoring", "broken", "open"])
@pytest.mark.asyncio
async def test_who_leaves_a_run_keeps_nothing_of_it(home: Home, where: str) -> None:
    ours, others = with_log(home, FIRST), with_log(home, SECOND)
    runs = made(home)
    if where != "restoring":
        runs.restoring.remove(FIRST)
    if where == "broken":
        runs.broken[FIRST] = "damaged"
    if where == "open":
        runs.open[FIRST] = cast(Run, Ending("ours"))
    await runs.leave(FIRST)
    assert not ours.exists()
    assert others.exists()


@pytest.mark.asyncio
async def test_a_run_is_left_even_if_its_log_cannot_be_removed(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with_log(home, FIRST)
    runs = made(home)
    runs.open[FIRST] = cast(Run, Ending("ours"))
    monkeypatch.setattr("shoal.node.run.log_store.shutil.rmtree", refuse)
    assert (await runs.leave(FIRST))["run"] == FIRST
    assert FIRST not in runs.open
    assert [getattr(record, "code", "") for record in caplog.records] == ["rest-not-removed"]


HERE = "/ip4/192.0.2.7/tcp/4101"
LINK = format_link(id_of(MANIFEST), [HERE])


def test_a_link_names_no_bridges_and_what_it_has_no_room_for_is_told(home: Home) -> None:
    lans = [f"/ip4/192.168.{number}.5/tcp/4101" for number in range(7)]
    bridges = [f"/ip4/10.{number}.0.1/tcp/4101" for number in (88, 89)]
    me = Identity.generate().peer
    around = {
        "addresses": lambda: tuple(f"{each}/p2p/{me}" for each in (*lans[:5], bridges[0], "/ip4/127.0.0.1/tcp/4101")),
        "untold_addresses": (*lans[5:], bridges[1]),
        "own_networks": OwnNetworks((ip_network("10.88.0.0/15"),)),
    }
    runs = made(home, around=around)
    run = SimpleNamespace(id=id_of(MANIFEST), manifest=MANIFEST, me=me, others=dict, register=None)
    runs.open = {id_of(MANIFEST).hex(): cast(Run, run)}
    answer = runs.link("ours")
    assert parse_link(answer["link"]) == RunLink(id_of(MANIFEST), tuple(lans[:5]))
    assert answer["untold"] == lans[5:]


@pytest.mark.asyncio
async def test_a_preview_asks_where_the_link_leads_and_keeps_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def found(*arguments: object) -> Introduction:
        asked.extend(arguments)
        return introduced(MANIFEST, {PeerId("anna"): (HERE,)}, present=3, round=14, pace=2.0)

    monkeypatch.setattr("shoal.node.run.runs.find_manifest", found)
    runs = made(home)
    before = sorted(home.root.rglob("*"))
    answer = await runs.preview(LINK)
    assert (answer["name"], answer["members"], answer["round"], answer["pace"]) == ("ours", 3, 14, 2.0)
    assert (asked[0], asked[3], asked[4].func) == (id_of(MANIFEST).hex(), (HERE,), providers)
    assert sorted(home.root.rglob("*")) == before
    assert runs.open == {}


@pytest.mark.asyncio
async def test_a_preview_measures_the_line_to_whoever_introduces_this_node(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was in no run yet knows nothing of it, and it is told before it begins that rounds are too fast."""

    async def found(*_: object) -> Introduction:
        return introduced(MANIFEST, {A: (), B: ()}, present=3, round=14, pace=1e-6)

    async def answer(peer: PeerId, message: Carry, timeout: float) -> Carried:
        assert peer == A
        await asyncio.sleep(0.002)
        return Carried(bytes(message.wanted))

    monkeypatch.setattr("shoal.node.run.runs.find_manifest", found)
    there = [Link(A, "direct", None, 0, 0, ("/ip4/192.0.2.7/tcp/4101",))]
    runs = made(home, around={"links": lambda: there, "call": answer, "bandwidth": Bandwidth()})
    words = dict((await runs.preview(LINK))["words"])
    assert "it would never catch up" in words["line"]


@pytest.mark.asyncio
async def test_a_preview_says_what_joining_says_of_the_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object) -> Introduction:
        return introduced(MANIFEST)

    monkeypatch.setattr("shoal.node.run.runs.find_manifest", found)
    monkeypatch.setattr("shoal.node.run.runs.checkpoint_bytes", lambda manifest: 1 << 60)
    runs = made(home)
    with pytest.raises(NoRoom, match="--checkpoint-every 0 makes none"):
        await runs.join(LINK, train=True)
    assert "--checkpoint-every 0 makes none" in (await runs.preview(LINK))["memory"]["problem"]


@pytest.mark.asyncio
async def test_a_run_that_was_entered_while_we_asked_for_it_is_not_entered_twice(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = made(home)

    async def found(*_: object) -> Introduction:
        runs.broken[id_of(MANIFEST).hex()] = "be it broken"
        return introduced(MANIFEST)

    monkeypatch.setattr("shoal.node.run.runs.find_manifest", found)
    for _ in range(2):  # the second time it is known before anybody is asked
        with pytest.raises(LocalError, match="already"):
            await runs.join(LINK, train=True)


@pytest.mark.asyncio
async def test_the_addresses_of_a_link_are_known_from_then_on(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object) -> Introduction:
        return introduced(MANIFEST)

    async def enter(self: Runs, *_: object) -> dict[str, Any]:
        assert known == []
        return {}

    monkeypatch.setattr("shoal.node.run.runs.find_manifest", found)
    monkeypatch.setattr(Runs, "_enter", enter)
    known: list[str] = []
    runs = made(home, known)
    await runs.join(LINK, train=True)
    assert known == [HERE]


@pytest.mark.parametrize("way", ["create", "join"])
@pytest.mark.asyncio
async def test_who_begins_with_a_run_anew_does_not_begin_with_what_was_kept(
    home: Home, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = made(home)
    key = new_run(MANIFEST, runs._identity, NONCE).run.hex() if way == "create" else id_of(MANIFEST).hex()
    kept = with_log(home, key)

    async def found(*_: object) -> Introduction:
        return introduced(MANIFEST)

    async def enter(self: Runs, *_: object, **__: object) -> Any:
        return {"kept": kept.exists()}

    monkeypatch.setattr("shoal.node.run.runs.find_manifest", found)
    monkeypatch.setattr(Runs, "_enter", enter)
    entered = runs.create(TEXT, True, nonce=NONCE.hex()) if way == "create" else runs.join(key, train=True)
    assert dict(await entered) == {"kept": False}


@pytest.mark.asyncio
async def test_a_run_that_was_founded_here_and_left_is_not_founded_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its founder would vote a second time on what others have decided."""
    runs = made(home)
    key = new_run(MANIFEST, runs._identity, NONCE).run.hex()

    async def enter(self: Runs, *_: object, **__: object) -> Any:
        self.open[key] = cast(Run, Ending("ours"))
        return {}

    async def fail(*_: object, **__: object) -> Any:
        raise NoRoom("no room")

    monkeypatch.setattr(Runs, "_enter", fail)
    with pytest.raises(NoRoom):
        await runs.create(TEXT, True, nonce=NONCE.hex())
    monkeypatch.setattr(Runs, "_enter", enter)
    await runs.create(TEXT, True, nonce=NONCE.hex())  # it was not founded then
    await runs.leave(key)
    with pytest.raises(LocalError, match="may not vote there again") as refusal:
        await runs.create(TEXT, True, nonce=NONCE.hex())
    assert refusal.value.code == "run-left"
    assert not runs.open
    with pytest.raises(LocalError, match="may not vote there again"):
        await made_by(home, runs).create(TEXT, True, nonce=NONCE.hex())


def test_what_is_kept_of_a_run_outlives_that_somebody_founds_it_a_second_time(home: Home) -> None:
    founding = introduced(MANIFEST)
    folder = home.make_run_folder(founding.run.hex())
    mark_founded(home, founding.run.hex())
    forget_founded(home, founding)
    assert folder.exists()
    unmark_founded(home, founding.run.hex())
    forget_founded(home, founding)
    assert not folder.exists()


def made_by(home: Home, before: Runs) -> Runs:
    """The same node after a restart."""
    runs = made(home)
    runs._identity = before._identity
    return runs


class Ending(SimpleNamespace):
    """The part of a run that its end uses; one that fails does so before the others have ended."""

    def __init__(self, name: str, error: Exception | None = None, go_on: asyncio.Event | None = None) -> None:
        manifest = SimpleNamespace(name=name, data=DataSpec())
        super().__init__(
            manifest=manifest, has_ended=False, is_finished=False, is_resting=name == "kept", stuck_without_us=""
        )
        self._error, self._go_on = error, go_on
        self.kept = 0
        self.training: Any = None

    async def keep(self) -> None:
        if self._error is not None:
            raise self._error
        self.kept += 1

    def empty_disk(self) -> None:
        self._error = None

    async def close(self, for_good: bool = False) -> None:
        if self._error is not None:
            raise self._error
        if self._go_on is not None:
            await self._go_on.wait()
        self.has_ended = True


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LocalError("the disk is full"), "the run bad did not end well: the disk is full"),
        (KeyError("a bug"), "the run bad did not end well: KeyError: 'a bug'"),
    ],
)
@pytest.mark.asyncio
async def test_a_run_that_does_not_end_well_keeps_no_other_from_being_saved(
    home: Home, error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs, go_on = made(home), asyncio.Event()
    bad, good = Ending("bad", error), Ending("good", go_on=go_on)
    runs.open = {FIRST: cast(Run, bad), SECOND: cast(Run, good)}
    closing = asyncio.create_task(runs.close())
    asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(go_on.set))
    with pytest.raises(LocalError, match=said):
        await asyncio.wait_for(closing, 10)
    assert good.has_ended
    assert [record.getMessage() for record in caplog.records] == [f"run bad did not end well: {error}"]


def test_all_are_at_rest_or_none(home: Home) -> None:
    runs = made(home)
    runs.open = {FIRST: cast(Run, Ending("kept"))}
    assert not runs.are_at_rest()  # the other one is about to be opened
    runs.restoring = []
    assert runs.are_at_rest()
    runs.open[SECOND] = cast(Run, Ending("lost"))
    assert not runs.are_at_rest()
    runs.open = {}
    assert not runs.are_at_rest()


@pytest.mark.asyncio
async def test_a_pause_ends_all_runs_well_and_keeps_them_until_it_is_over(home: Home) -> None:
    runs = made(home)
    runs.restoring = [SECOND]  # the node was about to enter it
    good = Ending("good")
    runs.open = {FIRST: cast(Run, good)}
    runs.paused = "paused: that was all for today"
    await runs.pause()
    assert good.has_ended
    assert (runs.open, runs.restoring) == ({}, [SECOND, FIRST])
    link = format_link(RunId(b"\x12" * 32), ["/ip4/127.0.0.1/tcp/1"])
    for entering in (runs.join(link, True), runs.create(TEXT, True)):
        with pytest.raises(LocalError, match="that was all for today") as refused:
            await entering
        assert refused.value.code == "node-paused"
    await runs.restore([])
    assert (runs.restoring, runs.broken) == ([SECOND, FIRST], {}), "not yet"
    assert [restoring_row(run, bool(runs.paused))["phase"] for run in runs.restoring] == ["paused", "paused"]
    runs.paused = ""
    await runs.restore([])
    assert (runs.restoring, set(runs.broken)) == ([], {FIRST, SECOND}), "their records are no manifests here"


@pytest.mark.asyncio
async def test_who_pauses_while_it_enters_a_run_enters_it_later(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = made(home)

    def recall(*_: object) -> object:
        runs.paused = "paused"
        raise LocalError("interrupted")

    monkeypatch.setattr(reloading, "recall", recall)
    await runs.restore([])
    assert set(runs.restoring) == {FIRST, SECOND}
    assert runs.broken == {}


@pytest.mark.asyncio
async def test_a_paused_node_does_not_deny_its_runs(home: Home) -> None:
    runs = made(home)
    with pytest.raises(LocalError, match="still to be entered again") as waiting:
        runs.find("stdlib")  # what the names of those from before the restart are is not known yet
    assert waiting.value.code == "not-ready"
    runs.restoring.clear()
    run = id_of(MANIFEST).hex()
    await entered(runs)
    assert runs.find("ours") is runs.open[run]
    runs.paused = "paused: it is outside the hours"
    await runs.pause()
    for wanted in ("ours", run, run[:8]):
        with pytest.raises(LocalError, match="outside the hours") as paused:
            runs.find(wanted)
        assert paused.value.code == "ending"
    with pytest.raises(UnknownRun, match=f"in no run 'stdlib'; it is in {run[:8]} \\(ours\\)"):
        runs.find("stdlib")
    runs.paused = ""
    with pytest.raises(LocalError, match="still to be entered again"):
        runs.find("ours")
    assert await runs.leave("ours") == {"run": run, "name": "ours"}


@pytest.mark.asyncio
async def test_a_run_that_is_not_open_has_its_name_also_after_a_restart(home: Home) -> None:
    runs = made(home)
    runs.restoring.clear()
    run = id_of(MANIFEST).hex()
    await entered(runs)
    runs.paused = "paused: it is outside the hours"
    await runs.pause()
    assert [(row["run"], row["name"], row["phase"]) for row in rows_of_closed(runs)] == [(run, "ours", "paused")]

    again = made(home)
    again.paused = "paused: it is outside the hours"
    names = {row["run"]: row["name"] for row in rows_of_closed(again)}
    assert names == {run: "ours", FIRST: None, SECOND: None}, "a record that is damaged tells no name"
    again.paused = ""
    assert {row["name"] for row in rows_of_closed(again) if row["phase"] == "restoring"} == {"ours", None}
    again.restoring.remove(run)
    again.broken[run] = "its data are nowhere"
    assert [row["name"] for row in rows_of_closed(again) if row["phase"] == "failed"] == ["ours"]
    assert (await again.leave("ours"))["name"] == "ours"


@pytest.mark.asyncio
async def test_a_pause_begins_no_founding(home: Home) -> None:
    runs = made(home)
    runs.paused = "paused: it is outside the hours"
    with pytest.raises(LocalError, match="outside the hours"):
        await runs.create('name = "ours"\n[model]\nname = "nonsense"', True)  # not even looked at


@pytest.mark.asyncio
async def test_a_run_that_is_entered_as_a_pause_begins_is_not_started(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, run = made(home), id_of(MANIFEST).hex()
    runs.restoring.clear()

    def remember(*arguments: Any) -> None:
        runs.paused = "paused"
        remember_run(*arguments)

    monkeypatch.setattr("shoal.node.run.runs.remember_run", remember)
    link = await entered(runs)
    assert (link["name"], runs.open, runs.restoring) == ("ours", {}, [run]), "it is entered when the node goes on"
    assert run in remembered_runs(home)
    runs.paused = ""
    monkeypatch.setattr(reloading, "recall", lambda *_: (FOUND, Joined(FOUND.genesis, True, "", None)))
    await runs.restore([])
    assert (list(runs.open), runs.restoring) == ([], [run]), "once more"
    runs.paused = ""
    monkeypatch.setattr("shoal.node.run.runs.remember_run", remember_run)
    await runs.restore([])
    assert (list(runs.open), runs.restoring) == ([run], [])


FOUND = introduced(MANIFEST)


class Started(SimpleNamespace):
    """The part of a run that entering and ending it use."""

    def __init__(self) -> None:
        super().__init__(
            id=id_of(MANIFEST), manifest=MANIFEST, me=PeerId("me"), others=dict, training=None, register=None
        )

    def start(self, seeds: list[PeerId]) -> None:
        pass

    async def close(self, for_good: bool = False) -> None:
        pass


@pytest.fixture(autouse=True)
def _nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runs, "_build", lambda *_: Started())


async def entered(runs: Runs) -> Any:
    return await runs.found(introduced(MANIFEST), True, None)


def of_full_disk() -> LocalError:
    error = LocalError("cannot keep the run: no space left")
    error.__cause__ = OSError(errno.EACCES, "Permission denied")  # nor is any other reason one to drop it
    return error


@pytest.mark.parametrize("when", ["paused", "resumed", "ended"])
@pytest.mark.asyncio
async def test_a_run_that_cannot_be_written_at_a_pause_is_kept_in_memory_and_tried_again(home: Home, when: str) -> None:
    runs, bad = made(home), Ending("bad", of_full_disk())
    runs.restoring.clear()
    runs.open, runs.paused = {FIRST: cast(Run, bad)}, "paused"
    await runs.pause()
    words = "its state is only in memory until it can be written: cannot keep the run: no space left"
    for _ in range(2):
        assert runs.unsaved == [{"run": FIRST, "name": "bad", "words": words}]
        assert [each["waiting_for"] for each in rows_of_closed(runs)] == [words]
        await runs.save_again()
    if when == "resumed":
        runs.paused = ""
        await runs.restore([])
        assert (runs.restoring, runs.broken) == ([FIRST], {}), "what is on disk is older"
    if when == "ended":
        with pytest.raises(LocalError, match=r"^the run bad did not end well: cannot keep the run: no space left$"):
            await runs.close()
    bad.empty_disk()
    if when == "resumed":
        await runs.restore([])
        assert list(runs.broken) == [FIRST], "its record is no manifest here"
    else:
        await (runs.save_again() if when == "paused" else runs.close())
    assert (bad.kept, runs.restore_obstacles, runs.unsaved) == (1, {}, [])
    await runs.save_again()
    assert bad.kept == 1


@pytest.mark.asyncio
async def test_what_is_said_of_a_moments_pause_breaks_no_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = made(home)

    def recall(*_: object) -> object:  # resumed before it was looked at
        raise LocalError("the node is ending or paused", code="ending")

    monkeypatch.setattr(reloading, "recall", recall)
    await runs.restore([])
    assert (set(runs.restoring), runs.broken) == ({FIRST, SECOND}, {})


@pytest.mark.asyncio
async def test_a_pause_during_a_download_does_not_forget_what_was_to_be_joined(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, asked = made(home), asyncio.Event()

    async def found(*_: object) -> Introduction:
        return FOUND

    async def data_for(*_: object) -> tuple[str, ...]:
        asked.set()
        if runs.paused:
            raise LocalError("the node is ending or paused", code="ending")
        return ()

    monkeypatch.setattr("shoal.node.run.runs.LOOK", 0.001)
    monkeypatch.setattr("shoal.node.run.runs.find_manifest", found)
    monkeypatch.setattr(Runs, "_data_for", data_for)
    monkeypatch.setattr(Runs, "_check_room_with_text", data_begins := Pauses(runs))
    async with asyncio.timeout(20):
        joining = asyncio.create_task(runs.join(LINK, True))
        await asked.wait()
        assert data_begins.done
        await runs.pause()  # nothing that a pause needs is held
        runs.paused = ""
        assert (await joining)["name"] == "ours"
        runs.open.clear()
        asked.clear()
        joining = asyncio.create_task(runs.join(LINK, True))
        await asked.wait()
        await runs.close()
        with pytest.raises(LocalError, match="ending"):
            await joining


class Pauses:
    """Pauses the node when there is a look at whether there is room."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self.done = runs, False

    async def __call__(self, *_: object) -> None:
        self.done = True
        self._runs.paused = "paused"


@pytest.mark.asyncio
async def test_a_script_is_a_process_of_the_node_until_it_ends_and_a_writer_is_killed_by_a_pause(home: Home) -> None:
    runs, sleeper = made(home), (sys.executable, "-c", "import sys; sys.stdin.read()")
    script, writer = [await asyncio.create_subprocess_exec(*sleeper, stdin=PIPE) for _ in range(2)]
    run = Ending("ours")
    run.training = SimpleNamespace(pid=script.pid, scripts={ProcessIdentity.of(script.pid)})

    async def free_device() -> None:
        run.training.pid = None

    run.free_device = free_device
    runs.open = {FIRST: cast(Run, run)}
    runs.writers.add(writer)
    assert runs.processes() == [os.getpid(), *sorted([script.pid, writer.pid])]
    runs.paused = "paused"
    await asyncio.wait_for(runs.free_devices(), 20)
    assert writer.returncode == -signal.SIGKILL
    runs.writers.discard(writer)
    await runs.pause()
    assert runs.processes() == [os.getpid(), script.pid]
    assert not runs.devices_are_free
    script.kill()
    await script.wait()
    assert runs.devices_are_free


WRITTEN = 'name = "written"\n[model]\ndim = 16\nlayers = 1\n[data]\nname = "files"\n'


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a worker and less than three copies of the text below."""
    monkeypatch.setattr("shoal.node.run.runs.available_memory", lambda: AvailableMemory(Memory(64 << 20, 40 << 20)))


def with_text(home: Home, shares: bool) -> Runs:
    text = home.root / "text.txt"
    text.write_bytes(b"The quick brown fox jumps over it\n" * (16 << 15))  # 17 MiB
    runs = made(home, data=(text,), share_data=shares)
    runs.restoring.clear()
    return runs


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.usefixtures("little_room")
@pytest.mark.asyncio
async def test_a_founders_own_text_counts(home: Home, shares: bool) -> None:
    runs = with_text(home, shares)
    with pytest.raises(NoRoom, match=r"for a step and the text\).* or a text of at most \d"):
        await runs.create(WRITTEN, True)
    assert not list(home.data.glob("*")), "nothing was packed"
    await asyncio.to_thread(runs._check_room, parse_manifest(WRITTEN), train=True)  # it is the text alone


@pytest.mark.usefixtures("little_room")
@pytest.mark.asyncio
async def test_own_text_counts_for_who_joins_or_is_back_in_a_run_that_does_not_measure_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = with_text(home, False)
    manifest = await runs.data.named(parse_manifest(WRITTEN))
    assert manifest.data.size == 0
    found = introduced(manifest)

    async def find(link: str) -> Introduction:
        return found

    monkeypatch.setattr(runs, "_find", find)
    with pytest.raises(NoRoom, match="or a text of at most"):
        await runs.join("link", True)
    assert "or a text of at most" in (await runs.preview("link"))["memory"]["problem"]

    monkeypatch.setattr(reloading, "recall", lambda *_: (found, Joined(found.genesis, True, "", None)))
    run = id_of(manifest).hex()
    runs.restoring.append(run)
    await runs.restore([])
    assert "or a text of at most" in runs.restore_obstacles[run]
