"""A real node whose daily volume is used up in the middle of a run: it pauses, the others go on, and so does it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.node.api.client import Client
from shoal.node.base.home import Home
from shoal.node.base.options import MIN_PER_DAY, NodeSettings
from shoal.node.client.up.processes import Children
from shoal.node.daemon import daemon as daemon_module
from shoal.node.daemon.daemon import Daemon
from shoal.node.daemon.guest.volume import DAY, DailyVolume
from shoal.protocol.base.errors import LocalError
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import PATIENCE, RealNode, until
from tests.integration.test_node import MANIFEST

LEFT = 1_000_000  # bytes of the volume when it starts: the state and some rounds


async def eventually(condition: Callable[[], object], what: str, words: Callable[[], str]) -> None:
    await asyncio.to_thread(until, condition, what, words, PATIENCE)


@dataclass
class Ahead:
    """A wall clock that runs so many seconds ahead."""

    seconds: float = 0.0

    def time(self) -> float:
        return time.time() + self.seconds


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_node_pauses_when_its_volume_is_used_up_and_goes_on_the_next_day(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    founder, other = (RealNode(tmp_path / name) for name in ("founder", "other"))
    await asyncio.to_thread(lambda: founder.start(children, create=manifest))
    await asyncio.to_thread(lambda: other.start(children, founder.address, join=(str(manifest),)))
    home = Home(tmp_path / "frugal").create()
    today = time.strftime("%Y-%m-%d", time.gmtime())
    home.volume.write_text(json.dumps({"day": today, "bytes": MIN_PER_DAY - LEFT}))
    settings = NodeSettings(
        home=home.root,
        port=0,
        listen_host="127.0.0.1",
        admin_port=0,
        threads=1,
        bootstrap=(await asyncio.to_thread(lambda: founder.address),),
        join=(str(manifest),),
        max_per_day=MIN_PER_DAY,
    )
    ahead = Ahead()
    monkeypatch.setattr(daemon_module, "DailyVolume", partial(DailyVolume, clock=ahead.time))
    with home.locked():
        daemon = Daemon(settings, home, Identity.load_or_create(home.identity_key))
        node = asyncio.create_task(daemon.run())
        try:
            await _pauses_and_goes_on(daemon, home, founder, ahead)
        finally:
            daemon.stop()
            await node
    assert json.loads(home.volume.read_text())["day"] != today


async def _pauses_and_goes_on(daemon: Daemon, home: Home, founder: RealNode, ahead: Ahead) -> None:
    def row() -> dict[str, Any]:
        rows = daemon.status()["runs"]
        return dict(rows[0]) if rows else {}

    def words() -> str:
        return f"{daemon.status()}\n{founder.row()}\n{founder.words()}"

    await eventually(lambda: row().get("round", 0) > 0, "a round with it", words)
    await eventually(lambda: row().get("phase") == "paused", "the pause", words)
    status = daemon.status()
    assert "goes on by itself at" in str(status["paused"])
    used = status["limits"]["used_today"]
    assert MIN_PER_DAY <= used < 1.05 * MIN_PER_DAY
    await eventually(lambda: founder.row().get("members") == 2, "its good-bye", words)
    assert not founder.client.status()["evidence"], "it has left, and is not lost"
    before = founder.round()
    await eventually(lambda: founder.round() > before + 3, "the others to go on", words)
    with pytest.raises(LocalError, match="paused"):
        await asyncio.to_thread(Client(home).join_run, "ab" * 32, False)
    assert daemon.status()["limits"]["used_today"] - used < 0.001 * MIN_PER_DAY, "words alone pass"

    ahead.seconds = DAY
    await eventually(lambda: row().get("phase") not in ("paused", "restoring"), "the run to be entered again", words)
    await eventually(lambda: row()["round"] > before, "it to catch up", words)
    reached = row()["round"]
    await eventually(lambda: row()["round"] > reached + 2 and row()["members"] == 3, "rounds with it", words)
    assert daemon.status()["paused"] is None
