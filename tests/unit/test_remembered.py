"""What survives a restart: the runs that a node is in, and the last addresses of the others."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.node.base.disk import Disk
from shoal.node.base.home import Home
from shoal.node.manifest.manifest import parse_manifest
from shoal.node.peers.remembered import (
    KEPT,
    MAX_ADDRESSES,
    SILENT_MOST,
    STEP_MOST,
    Joined,
    JoinedOfProtocol1,
    PeerCache,
    forget_anchor,
    forget_run,
    recall_run,
    remember_run,
    remembered_runs,
)
from shoal.node.run.reloading import remembers
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.shortages import is_temporary
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.genesis import Genesis
from shoal.protocol.net.system.identity import Identity
from tests.limits import no_more_files
from tests.run_kit import on_paper
from tests.unit.disk_kit import fill_disk

FIRST, SECOND = "ab" * 32, "0d" * 32
RECORD = Joined(
    Genesis(b"manifest", PeerId("anna"), b"nonce", b"signature"),
    True,
    "/checkpoints/round-00000004",
    Anchor(9, bytes(8), bytes(8)),
)
ANNA, BERT = PeerId("anna"), PeerId("bert")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_runs_are_remembered_in_order_until_they_are_left(home: Home) -> None:
    assert remembered_runs(home) == []
    remember_run(home, FIRST, RECORD)
    remember_run(home, SECOND, RECORD)
    os.utime(home.run_folder(FIRST) / "joined.record", (1, 1))
    assert remembered_runs(home) == [FIRST, SECOND]
    assert recall_run(home, FIRST) == RECORD
    forget_run(home, FIRST)
    assert remembered_runs(home) == [SECOND]
    forget_run(home, FIRST)  # nothing to forget


def test_leaving_keeps_the_votes(home: Home) -> None:
    remember_run(home, FIRST, RECORD)
    vote = home.run_folder(FIRST) / "vote-0.record"
    vote.touch()
    forget_run(home, FIRST)
    assert vote.exists()


def test_a_damaged_record_is_an_error_for_that_run(home: Home) -> None:
    remember_run(home, FIRST, RECORD)
    (home.run_folder(FIRST) / "joined.record").write_bytes(b"\xff")
    assert remembered_runs(home) == [FIRST]
    with pytest.raises(LocalError, match="damaged"):
        recall_run(home, FIRST)


def test_other_folders_are_no_runs(home: Home) -> None:
    for name in ("notes", "ab"):
        (home.runs / name).mkdir()
        (home.runs / name / "joined.record").touch()
    assert remembered_runs(home) == []


def test_runs_that_cannot_be_listed_are_not_none(home: Home) -> None:
    remember_run(home, FIRST, RECORD)
    with no_more_files(), pytest.raises(LocalError, match=r"cannot read .*/runs: Too many open files") as caught:
        remembered_runs(home)
    assert is_temporary(caught.value)


def test_a_run_whose_record_cannot_be_looked_at_is_still_one(home: Home) -> None:
    """Reading it says what is wrong."""
    remember_run(home, FIRST, RECORD)
    record = home.make_run_folder(SECOND) / "joined.record"
    record.symlink_to(record)
    assert remembered_runs(home) == [SECOND, FIRST]
    with pytest.raises(LocalError, match="Too many levels of symbolic links"):
        recall_run(home, SECOND)


def test_a_run_of_protocol_1_is_named_as_such_and_stays_as_it_is(home: Home) -> None:
    """Also beside records that this version does not know, such as its votes."""
    folder = home.make_run_folder(FIRST)
    Disk(folder).put("joined", JoinedOfProtocol1(b"manifest", ANNA, b"signature", True, ""))
    (folder / "vote-0.record").write_bytes(b"\x91\xcc\xfa")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(LocalError, match="of an earlier Shoal, whose protocol 1") as error:
        recall_run(home, FIRST)
    assert error.value.code == "other-protocol"
    assert remembered_runs(home) == [FIRST], "it is shown until it is left"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_cannot_be_read_now_does_not_say_that_a_run_was_not_founded(home: Home) -> None:
    """It would be founded once more."""
    found, identity = on_paper(parse_manifest('name = "ours"\n')), Identity.generate()
    remember_run(home, found.run.hex(), Joined(found.genesis, True, "", None))
    assert remembers(home, identity, lambda each: each.run == found.run)
    assert not remembers(home, identity, lambda each: each.run != found.run)
    with no_more_files(), pytest.raises(LocalError, match="Too many open files"):
        remembers(home, identity, lambda each: each.run == found.run)


def test_peers_latest_first_and_bounded(home: Home) -> None:
    cache = PeerCache(home.peers)
    assert cache.load() == {}
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1/p2p/anna",), BERT: ()})
    assert cache.load() == {ANNA: ("/ip4/192.0.2.1/tcp/1",)}
    cache.update({BERT: ("/ip4/192.0.2.2/tcp/1",)})
    assert list(cache.load()) == [BERT, ANNA]
    cache.update({PeerId(f"peer-{i}"): (f"/ip4/192.0.2.3/tcp/{i + 1}",) for i in range(KEPT - 1)})
    assert len(cache.load()) == KEPT
    assert ANNA not in cache.load()
    cache.update({})
    assert list(cache.load())[-1] == BERT


def test_where_a_peer_answered_comes_first_and_its_other_addresses_stay(home: Home) -> None:
    cache = PeerCache(home.peers)
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1",), BERT: ("/ip4/192.0.2.2/tcp/1", "/ip4/192.0.2.2/tcp/2")})
    cache.reached(BERT, "/ip4/192.0.2.9/tcp/1/p2p/bert")
    assert list(cache.load()) == [BERT, ANNA]
    assert cache.load()[BERT] == ("/ip4/192.0.2.9/tcp/1", "/ip4/192.0.2.2/tcp/1", "/ip4/192.0.2.2/tcp/2")
    for port in range(1, 99):
        cache.reached(BERT, f"/ip4/192.0.2.9/tcp/{port}")
    assert len(cache.load()[BERT]) == MAX_ADDRESSES
    cache.reached(PeerId("carl"), "nowhere")
    assert list(cache.load()) == [BERT, ANNA]


class Silence:
    """A steady clock that others move, and as many tries without an answer as fit into some seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 7.0
        monkeypatch.setattr("shoal.node.peers.remembered.time.monotonic", lambda: self.now)

    def last(self, seconds: float, cache: PeerCache, *peers: PeerId) -> None:
        for _ in range(int(seconds / STEP_MOST)):
            self.now += STEP_MOST
            cache.missed(peers)


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Silence:
    return Silence(monkeypatch)


def test_who_is_silent_for_days_goes_and_who_answers_again_stays(home: Home, silence: Silence) -> None:
    cache = PeerCache(home.peers)
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1",), BERT: ("/ip4/192.0.2.2/tcp/1",)})
    cache.missed([ANNA, BERT, PeerId("nobody")])
    silence.last(SILENT_MOST / 2, cache, ANNA, BERT)
    again = PeerCache(home.peers)  # what was counted is counted over a restart, too
    again.missed([ANNA, BERT])
    silence.last(SILENT_MOST / 2, again, ANNA)
    assert list(again.load()) == [ANNA, BERT]
    again.reached(BERT, "/ip4/192.0.2.2/tcp/1")
    silence.last(STEP_MOST, again, ANNA, BERT)
    assert list(again.load()) == [BERT]


def test_a_clock_that_is_wrong_makes_nobody_forgotten(
    home: Home, silence: Silence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a battery for its clock is in 1970 until it has asked for the time."""
    right, wall = time.time(), 300.0
    monkeypatch.setattr(time, "time", lambda: wall)
    cache = PeerCache(home.peers)
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1",)})
    for wall in (300.0, right, right + 10 * 86_400, right, right - 10 * 86_400, right):
        silence.last(STEP_MOST, cache, ANNA)
        assert list(cache.load()) == [ANNA], wall


def test_time_in_which_nobody_was_looked_for_is_no_silence(home: Home, silence: Silence) -> None:
    """As while all were there that are wanted, or the machine was asleep."""
    cache = PeerCache(home.peers)
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1",)})
    for _ in range(5):
        silence.now += SILENT_MOST
        cache.missed([ANNA])
    assert list(cache.load()) == [ANNA]


def test_a_file_that_says_since_when_somebody_was_silent_forgets_nobody(home: Home) -> None:
    row = {"peer": "anna", "addresses": ["/ip4/192.0.2.1/tcp/1"], "silent": 1_700_000_000.0}
    home.peers.write_text(json.dumps([row]))
    cache = PeerCache(home.peers)
    cache.missed([ANNA])
    assert list(cache.load()) == [ANNA]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"[1]", b'[{"peer": "anna"}]', b"7", b"null", b'[{"peer": 1, "addresses": ["nowhere", 3]}]'),
        *(b"\x00", b"\xff\xfe\x80 no text at all", b"[" * 100_000),
    ],
)
def test_a_damaged_cache_is_no_cache(home: Home, content: bytes) -> None:
    home.peers.write_bytes(content)
    cache = PeerCache(home.peers)
    assert cache.load() == {}
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1",)})
    assert list(cache.load()) == [ANNA]


def test_a_full_disk_costs_the_hint_only(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PeerCache(home.peers)
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1",)})
    fill_disk(monkeypatch)
    cache.update({BERT: ("/ip4/192.0.2.2/tcp/1",)})
    assert list(cache.load()) == [ANNA]


def test_an_anchor_that_counts_no_more_is_forgotten_and_the_run_keeps_its_place(home: Home) -> None:
    for place, run in enumerate((FIRST, SECOND)):
        remember_run(home, run, RECORD)
        os.utime(home.run_folder(run) / "joined.record", ns=(place, place))
    forget_anchor(home.run_folder(FIRST))
    assert recall_run(home, FIRST) == replace(RECORD, anchor=None)
    assert remembered_runs(home) == [FIRST, SECOND]
    forget_run(home, SECOND)
    forget_anchor(home.run_folder(SECOND))
    assert remembered_runs(home) == [FIRST]
