"""A few lines of the table that benchmarks/trainer_options.py makes of all that the Trainer offers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from shoal.protocol.base.errors import LocalError

pytest.importorskip("transformers", reason="transformers IS NOT INSTALLED: see `make install`")
pytest.importorskip("accelerate", reason="accelerate IS NOT INSTALLED: see `make install`")


@pytest.fixture(scope="module")
def table() -> Any:
    import trainer_options  # type: ignore[import-not-found]

    return trainer_options


@pytest.mark.parametrize("name", ["linear", "reduce_lr_on_plateau", "greedy"])
def test_schedulers_of_the_trainer_work(table: Any, name: str) -> None:
    assert name in table.schedulers()
    assert table.try_scheduler(name).outcome == "works"


@pytest.mark.parametrize("name", ["adamw_torch_fused", "adafactor", "rmsprop"])
def test_optimizers_of_the_trainer_work(table: Any, name: str) -> None:
    assert name in table.optimizers()
    assert table.try_optimizer(name).outcome == "works"


def test_what_we_refuse_is_refused_whatever_its_words(table: Any) -> None:
    words = "install the version that the founder has"
    assert table._judged(table.RunAtHand("", {}), LocalError(words)) == ("refused", words)
    assert table._judged(table.RunAtHand("", {}), ImportError("You need to install galore"))[0] == "needs a package"


def test_nothing_but_the_table_is_printed(
    table: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [each for each in table.schedulers() + table.optimizers() if "plateau" in each]
    monkeypatch.setattr(sys, "argv", ["trainer_options.py", "--only", "plateau", "--json"])
    monkeypatch.setattr(table.logging, "disable", lambda level: None)  # of other tests, too
    with pytest.raises(SystemExit) as ended:
        table.main()
    assert ended.value.code == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == names


@pytest.mark.slow
def test_every_option_of_the_trainer_works_or_needs_a_package(table: Any) -> None:
    results = list(table.tried())
    assert len(results) == len(table.schedulers()) + len(table.optimizers())
    wrong = [each for each in results if each.outcome not in ("works", "needs a package")]
    assert not wrong, wrong
    assert sum(each.outcome == "works" for each in results) >= len(table.schedulers()) + 5
