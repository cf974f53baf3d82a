"""A running node's settings are changed: in config.toml, and at once where that is possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.base import started
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings, UsageError
from shoal.node.base.schedule import parse_schedule
from shoal.node.base.settings import FLAG, choose
from shoal.node.daemon.own_settings import OwnSettings


class Node:
    def __init__(self, root: Path) -> None:
        self.home, self.applied = Home(root).create(), list[NodeSettings]()
        settings = NodeSettings(root, threads=3, max_up=2_500_000)
        self.own = OwnSettings(settings, self.home, self.applied.append)


@pytest.mark.asyncio
async def test_limits_and_rules_hold_at_once_and_the_rest_from_the_next_start_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.home.config.write_text("# mine\nthreads = 3\n")
    started.keep(node.home, choose(tmp_path, (FLAG, {"max-up": 2_500_000, "port": 5})))
    changed = await node.own.change({"max-up": "5MB/s", "schedule": "22:00-07:00", "threads": 2, "port": 4101})
    assert changed["applied"] == ["max-up", "schedule"]
    assert changed["at_next_start"] == ["threads"], "the port is what it was"
    assert node.home.config.read_text() == (
        '# mine\nthreads = 2\nmax-up = "5MB/s"\nschedule = "22:00-07:00"\nport = 4101\n'
    )
    [now] = node.applied
    assert (now.max_up, now.schedule, now.threads) == (5_000_000, parse_schedule("22:00-07:00"), 3)
    assert node.own.as_json()["settings"]["max-up"] == "40Mbit"
    assert started.recall(node.home) == {}, "a restart has them from config.toml"

    changed = await node.own.change({"max-up": None})
    assert (changed["applied"], changed["settings"]["max-up"]) == (["max-up"], "none")
    assert "max-up" not in node.home.config.read_text()


@pytest.mark.asyncio
async def test_what_an_editor_has_written_holds_and_stays_as_it_is_written(tmp_path: Path) -> None:
    node, text = Node(tmp_path), "join = [\n    'abcdef01',  # the first\n]\nmax-up = '5MB/s'\n"
    node.home.config.write_text(text)
    changed = await node.own.change({"join": ["abcdef01"], "max-up": "5MB/s"})
    assert (changed["applied"], changed["at_next_start"]) == (["max-up"], ["join"])
    assert [each.max_up for each in node.applied] == [5_000_000]
    assert node.home.config.read_text() == text


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max-up": "5MB/s", "thraeds": 2}, "the nearest known key is 'threads'"),
        ({"max-up": "5MB/s", "threads": "two"}, 'threads = "two" is not a whole number'),
        ({"max-up": "5MB/s", "schedule": "late"}, "schedule: 'late' is no hours"),
        ({"max-up": None, "nothing": None}, "unknown key"),
    ],
)
async def test_a_mistake_changes_nothing(tmp_path: Path, settings: dict[str, object], said: str) -> None:
    node = Node(tmp_path)
    node.home.config.write_text('max-up = "20Mbit"\n')
    with pytest.raises(UsageError, match=said):
        await node.own.change(settings)
    assert node.home.config.read_text() == 'max-up = "20Mbit"\n'
    assert node.applied == []
