"""A node's runs at its start: those of its last life are known before they are open."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from shoal.node.home import Home
from shoal.node.options import NodeSettings
from shoal.node.remembered import Joined, PeerCache, remember_run, remembered_runs
from shoal.node.run_view import restoring_row
from shoal.node.runs import Runs
from shoal.protocol.identity import Identity
from shoal.protocol.ids import PeerId
from shoal.protocol.network import Network

FIRST, SECOND = "ab" * 32, "0d" * 32


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home").create()
    for run in (FIRST, SECOND):
        remember_run(home, run, Joined(b"no manifest", PeerId("anna"), b"", True, ""))
    return home


def made(home: Home) -> Runs:
    settings = NodeSettings(home=home.root)
    return Runs(settings, home, Identity.generate(), cast(Network, None), PeerCache(home.peers), None)


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


def test_its_row_says_so(home: Home) -> None:
    row = restoring_row(FIRST)
    assert (row["run"], row["phase"], row["failure"]) == (FIRST, "restoring", None)
