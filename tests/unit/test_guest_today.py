"""What the node counts as done today: over restarts, and anew after midnight."""

from __future__ import annotations

from pathlib import Path

from shoal.node.api.answers import Today
from shoal.node.daemon.guest.today import SAVE_EVERY, TodayCount

NOON = 20_000 * 86_400.0 + 43_200.0


class Node:
    def __init__(self, folder: Path) -> None:
        self.now, self.total, self.folder = NOON, [0, 0, 0], folder

    def starts(self, *total: int) -> TodayCount:
        self.total = list(total)
        return TodayCount(self.folder / "today.json", self.done, lambda: self.now)

    def done(self) -> Today:
        rounds, sent, received = self.total
        return {"rounds": rounds, "sent": sent, "received": received}


def test_today_counts_on_after_a_restart_and_anew_after_midnight(tmp_path: Path) -> None:
    node = Node(tmp_path)
    today = node.starts(0, 100, 100)
    node.total = [3, 1100, 2100]
    assert today.as_json() == {"rounds": 3, "sent": 1000, "received": 2000}
    today.write(today.record())
    again = node.starts(0, 0, 0)
    node.total = [1, 10, 10]
    assert again.as_json() == {"rounds": 4, "sent": 1010, "received": 2010}
    node.now += 43_200
    assert again.as_json() == {"rounds": 0, "sent": 0, "received": 0}
    node.total = [2, 20, 30]
    assert again.as_json() == {"rounds": 1, "sent": 10, "received": 20}


def test_it_is_written_now_and_then_and_a_file_that_cannot_be_read_counts_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    today = node.starts(0, 0, 0)
    assert not today.is_worth_saving()
    node.now += SAVE_EVERY
    assert today.is_worth_saving()
    today.record()
    assert not today.is_worth_saving()
    for content in (b"", b"[]", b'{"day": 1}', b'{"day": "2024-10-04", "rounds": "x", "sent": 1, "received": 1}'):
        (tmp_path / "today.json").write_bytes(content)
        assert node.starts(0, 0, 0).as_json() == {"rounds": 0, "sent": 0, "received": 0}
