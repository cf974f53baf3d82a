"""Records survive, and a damaged one is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.base.disk import Disk
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.shortages import is_temporary
from shoal.protocol.messages.node import GetManifest, Refused
from tests.limits import no_more_files
from tests.unit.disk_kit import RENAMED, DiskLog, fill_disk


def test_the_last_record_of_each_name_is_kept(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.put("vote-0", GetManifest("old"))
    disk.put("vote-0", GetManifest("new"))
    disk.put("vote-1", Refused("other"))
    assert Disk(tmp_path).load() == {"vote-0": GetManifest("new"), "vote-1": Refused("other")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vote-0.record", "vote-1.record"]


def test_a_record_is_on_disk_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DiskLog(monkeypatch)
    Disk(tmp_path).put("vote-0", GetManifest("new"))
    record = tmp_path / "vote-0.record"
    assert log.order(record, tmp_path) == [record.name, RENAMED, tmp_path.name]


def test_a_crash_while_writing_leaves_the_old_record(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.put("vote-0", GetManifest("old"))
    (tmp_path / ".vote-0.record.0123abcd.new").write_bytes(b"half of it")
    assert Disk(tmp_path).load() == {"vote-0": GetManifest("old")}


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"\x92\x01\x02"])
def test_a_damaged_record_is_an_error_and_not_a_fresh_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vote-0.record").write_bytes(content)
    with pytest.raises(LocalError, match="damaged"):
        Disk(tmp_path).load()


def test_a_full_disk_is_said_and_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    disk.put("vote-0", GetManifest("old"))
    fill_disk(monkeypatch)
    with pytest.raises(LocalError, match=r"vote-0\.record: No space left on device"):
        disk.put("vote-0", GetManifest("new"))
    assert disk.load() == {"vote-0": GetManifest("old")}


def test_records_that_cannot_be_listed_are_not_none(tmp_path: Path) -> None:
    """A member that starts without its votes may vote twice."""
    Disk(tmp_path).put("vote-0", GetManifest("kept"))
    with pytest.raises(LocalError, match=r"cannot read .*vote-0\.record: Not a directory"):
        Disk(tmp_path / "vote-0.record").load()
    with no_more_files(), pytest.raises(LocalError, match=r"cannot read .*: Too many open files") as caught:
        Disk(tmp_path).load()
    assert is_temporary(caught.value)
    assert Disk(tmp_path / "never made").load() == {}


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="No such file or directory"):
        Disk(tmp_path / "gone").put("vote-0", GetManifest("new"))
