"""The command line of the laboratory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.node.base.exits import Exit
from shoal.node.lab.__main__ import main
from shoal.node.lab.registry import METHODS, WrongSetting, parse
from tests.unit.lab.lab_kit import CORPUS

WRONG = [
    ("--method nolico", "unknown method 'nolico'; known are ddp, diloco, diloco-delayed, diloco-eager, co2, "),
    ("--method noloco pull=1", "noloco knows no 'pull'; its settings are alpha, beta, gamma"),
    ("--method ddp lr=1", "ddp knows no 'lr'; it has no settings"),
    ("--method noloco alpha", "'alpha' is no setting; settings are written key=value"),
    ("--method noloco alpha=much", "alpha=much: alpha is a number"),
    ("--method noloco alpha=nan", "alpha=nan: alpha is a number"),
    ("--method gossip mixing_steps=1.5", "mixing_steps=1.5: mixing_steps is a whole number"),
    ("--method noloco --lose 1.5", "1.5 is no number from 0 to 1"),
    ("--method noloco --workers 0", "0 is no whole number from 1 to 100000"),
    ("--method noloco --manifest nowhere.toml", "cannot read the manifest nowhere.toml"),
    ("--workers 2", "the following arguments are required: --method"),
]
UNFIT = [
    ("--method noloco gamma=1.6", "noloco: gamma, the pull, is 1.6; "),
    ("--method gossip neighbours=0", "gossip: neighbours=0.0: neighbours must be more than 0"),
    (
        "--method sparseloco codec=fp64",
        "sparseloco: codec=fp64: known are fp32, fp16, bf16, int8, fp4, topk, uint8, sign, fedzip",
    ),
    ("--method streaming-diloco strides=3", "streaming-diloco: 2 layers cannot be dealt out to 3 fragments"),
]
TINY = """
name = "tiny"
[model]
dim = 16
layers = 1
heads = 2
kv_heads = 1
hidden = 24
context = 16
[method]
inner_steps = 2
batch = 2
"""


@pytest.fixture(autouse=True)
def small_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.lab.__main__.stdlib_corpus", lambda: CORPUS)


@pytest.mark.parametrize(("line", "sentence"), WRONG + UNFIT)
def test_a_wrong_command_line_is_answered_with_what_is_right(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(line.split())
    assert left.value.code == Exit.USAGE
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_manifest_of_other_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(f'{TINY}[data]\nname = "files"\n')
    with pytest.raises(SystemExit) as left:
        main(["--method", "ddp", "--manifest", str(tmp_path / "run.toml")])
    assert left.value.code == Exit.USAGE
    assert "trains on stdlib only" in capsys.readouterr().err


def test_an_optimizer_that_its_workers_lack_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text('name = "tiny"\n[method]\noptimizer = "muon"\n')
    with pytest.raises(SystemExit) as left:
        main(["--method", "ddp", "--manifest", str(tmp_path / "run.toml")])
    assert left.value.code == Exit.USAGE
    assert "train with AdamW only" in capsys.readouterr().err


def test_settings_have_the_types_of_their_defaults() -> None:
    assert parse("gossip", ["mixing_steps=2"]) == {"mixing_steps": 2, "neighbours": 2.0, "delay": 0}
    assert parse("co2", ["clip=inf", "lr=2"])["lr"] == 2.0
    assert parse("sparseloco", ["codec=fp32"])["codec"] == "fp32"
    with pytest.raises(WrongSetting, match="known are"):
        parse("", [])
    assert all(parse(name, []) == entry.defaults for name, entry in METHODS.items())


def test_a_training_by_a_manifest_says_what_came_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(TINY)
    line = f"--method noloco --manifest {tmp_path / 'run.toml'} gamma=1 --workers 2 --steps 4 --validation 500 beta=1"
    assert main([*line.split(), "--json"]) == Exit.OK
    table = json.loads(capsys.readouterr().out)
    assert table["settings"] == {"alpha": 0.5, "beta": 1.0, "gamma": 1.0, "delay": 0}
    assert (table["answered"], table["missed"], table["bytes_sent_per_parameter"]) == (4, 0, 16.0)
    assert len(table["training_loss"]) == 4
    assert main(line.split()) == Exit.OK
    shown = capsys.readouterr()
    assert f"{table['validation_loss']:.4f} of the averaged model" in shown.out
    assert "step 4 of 4" in shown.err
