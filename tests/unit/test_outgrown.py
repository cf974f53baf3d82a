"""What was kept of a run is released by its first later round, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.run.outgrown import unless_outgrown
from shoal.node.run.resting import FOLDER
from tests.unit.test_rest import REST


@pytest.mark.asyncio
async def test_a_later_round_ends_it(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    assert await unless_outgrown(REST, REST.newest, tmp_path) is REST  # one of its own decisions is applied
    assert (tmp_path / FOLDER).exists()
    assert await unless_outgrown(REST, REST.newest + 1, tmp_path) is None
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.asyncio
async def test_a_run_that_was_not_kept_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    assert await unless_outgrown(None, 9, tmp_path) is None
    assert (tmp_path / FOLDER).exists()
