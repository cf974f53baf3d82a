"""SIGKILL while checkpoints are written, at random instants: what was announced as whole is there, and loads."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shoal.node.training.checkpoint.read import load_newest
from shoal.node.training.checkpoint.scan import newest_first

KILLS = 30
SPREAD = 0.06  # seconds after a beginning: some checkpoints of this size are whole before, some are not
PROGRAM = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.integration.checkpoint_writer import main
main(Path(sys.argv[1]))
"""


def one_life(folder: Path, rng: random.Random) -> tuple[int, int]:
    """Let a writer live until a random instant within one of its checkpoints; the last one begun and whole."""
    writer = subprocess.Popen([sys.executable, "-P", "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    wanted, seen = rng.randint(1, 3), {"begin": 0, "whole": 0}
    for line in writer.stdout:
        word, round = line.split()
        seen[word] = int(round)
        if word == "begin":
            wanted -= 1
            if not wanted:
                killer = threading.Timer(rng.uniform(0, SPREAD), writer.kill)
                killer.start()
    writer.stdout.close()
    assert writer.wait() == -9
    killer.join()
    return seen["begin"], seen["whole"]


@pytest.mark.slow
def test_the_newest_whole_checkpoint_survives_any_instant_of_death(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    cut = 0
    for life in range(KILLS):
        begun, whole = one_life(tmp_path, rng)
        words = f"seed {seed}, life {life}: begun {begun}, whole {whole}"
        newest = load_newest(tmp_path)
        assert newest is not None or whole == 0, words
        if newest is not None:
            assert whole <= newest.about.round <= begun, words  # it may die between the rename and the announcement
        assert all(each.about is not None for each in newest_first(tmp_path)), words  # no half is ever seen
        cut += begun > whole
    print(f"seed {seed}: {KILLS} kills, {cut} of them in the middle of a checkpoint")
    assert cut, f"seed {seed}: no kill hit a checkpoint in the making"
