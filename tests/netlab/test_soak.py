"""A run of six is struck for half an hour: it never comes apart, never stands still unannounced, and goes on learning.

SHOAL_SOAK="3 8" pytest tests/netlab/test_soak.py -k as_long      minutes, and the seed of what happens
"""

from __future__ import annotations

import faulthandler
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.lasting import applied, disputed
from tests.netlab.lab import Lab
from tests.netlab.schedule import turns
from tests.netlab.soak import Soak

PEERS = 6
VARIABLE, USUAL = "SHOAL_SOAK", "30 7"
LONGEST = 15.0  # seconds without a round, unless it was announced
LISTED = 5.0  # from how many seconds on they are listed

pytestmark = [pytest.mark.slow, pytest.mark.patient]


def test_a_run_is_struck_for_as_long_as_asked(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    minutes, seed = map(int, os.environ.get(VARIABLE, USUAL).split())
    with capsys.disabled():  # what has happened is of interest in any case
        play(lab, tmp_path, minutes, seed)


def test_a_run_is_struck_for_two_minutes(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        play(lab, tmp_path, 2, 11)


def play(lab: Lab, folder: Path, minutes: int, seed: int) -> None:
    """Strike a run, print what has happened, and check what is promised."""
    faulthandler.cancel_dump_traceback_later()  # of pytest: it takes a test that is as long as this one for stuck
    print(f"\n{PEERS} peers, {minutes} minutes, seed {seed}", flush=True)
    with ExitStack() as stack:
        soak = Soak(lab, stack, folder, PEERS)
        try:
            soak.play(turns(seed, PEERS), 60.0 * minutes)
            last = soak.settle()
        finally:
            print(soak.report(LISTED), flush=True)
        first_third, last_third = soak.seen.loss(0, 3), soak.seen.loss(2, 3)
        print(f"{last} rounds; loss {first_third:.3f} in the first third, {last_third:.3f} in the last", flush=True)
        assert disputed([peer.node for peer in soak.peers]) == []
        assert last in applied([peer.node for peer in soak.members])
        assert [soak.at(pause) for pause in soak.seen.pauses(LONGEST) if not pause.why] == []
        assert last_third < first_third
