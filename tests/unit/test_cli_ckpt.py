"""`shoal ckpt`: lists and verifies what is on disk, and exports it in formats that other programs read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shoal.node.base.exits import Exit
from shoal.node.base.home import find_home
from shoal.node.client.cli import main
from shoal.node.training.checkpoint.about import OUTER
from shoal.node.training.checkpoint.scan import CHECKPOINTS
from tests.run_kit import id_of
from tests.unit.checkpoint_kit import MANIFEST, ME, write


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run the command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["shoal", "ckpt", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def held(shoal) -> list[Path]:
    """Two checkpoints in this node's home."""
    folder = find_home().create().run_folder(id_of(MANIFEST).hex()) / CHECKPOINTS
    return [write(folder, round) for round in (4, 8)]


def test_ls_lists_the_home_or_a_folder(shoal, held: list[Path]) -> None:
    code, out, _ = shoal("ls", "--json")
    rows = json.loads(out)
    assert code == Exit.OK
    assert [(row["round"], row["path"], row["problem"]) for row in rows] == [
        (4, str(held[0]), None),
        (8, str(held[1]), None),
    ]
    assert (rows[0]["run"], rows[0]["peer"], rows[0]["samples"]) == (id_of(MANIFEST).hex(), ME, 1000)
    code, out, _ = shoal("ls", str(held[0].parent))
    assert out.splitlines()[0].split()[:3] == ["RUN", "NAME", "ROUND"]
    assert len(out.splitlines()) == 3


def test_ls_of_nothing_and_of_no_folder(shoal, tmp_path: Path) -> None:
    assert shoal("ls", str(tmp_path))[1] == "no checkpoints\n"
    code, _, err = shoal("ls", str(tmp_path / "nowhere"))
    assert (code, "not a folder" in err) == (Exit.FAILED, True)


def test_verify_reads_every_byte(shoal, held: list[Path]) -> None:
    code, out, _ = shoal("verify", str(held[1]))
    assert (code, out.splitlines()[-1]) == (Exit.OK, "intact: every file has its hash, and the state its root")
    assert shoal("verify", str(held[1].parent))[1].endswith(
        "\nall 2 intact: every file has its hash, and the state its root\n"
    )
    data = bytearray((held[1] / OUTER).read_bytes())
    data[-1] ^= 1
    (held[1] / OUTER).write_bytes(data)
    assert json.loads(shoal("ls", "--json")[1])[1]["problem"] is None  # a glance does not see it
    code, out, _ = shoal("verify", str(held[1].parent), "--json")
    assert code == Exit.FAILED
    assert [row["problem"] is None for row in json.loads(out)] == [True, False]
    assert "\n1 of 2 intact: " in shoal("verify", str(held[1].parent))[1]
    code, out, _ = shoal("verify", str(held[1]))
    assert "is damaged" in out
    assert "intact" not in out
    assert "its bytes are not those that were written" in out


def test_verify_of_nothing_is_no_success(shoal, tmp_path: Path) -> None:
    assert shoal("verify", str(tmp_path))[0] == Exit.FAILED


def test_export_makes_a_folder(shoal, held: list[Path], tmp_path: Path) -> None:
    code, out, _ = shoal("export", str(held[0]), str(tmp_path / "out"))
    assert code == Exit.OK
    assert "AutoModelForCausalLM" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
