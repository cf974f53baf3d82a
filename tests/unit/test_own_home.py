"""deploy/own-home: each replica gets a numbered folder of its own, and trouble with a lock gives nobody another's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

OWN_HOME = Path(__file__).parents[2] / "deploy" / "own-home"
pytestmark = pytest.mark.skipif(not shutil.which("flock"), reason="needs flock")


def own_home(pool: Path, *command: str, path: str = "") -> subprocess.Popen[str]:
    environ = os.environ | {"SHOAL_HOME": str(pool / "home"), "PATH": f"{path}:{os.environ['PATH']}"}
    pipe = subprocess.PIPE
    return subprocess.Popen([OWN_HOME, pool, *command], env=environ, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def test_each_has_the_first_folder_that_no_other_holds(tmp_path: Path) -> None:
    say = ("sh", "-c", 'readlink "$SHOAL_HOME"; read -r _')
    with own_home(tmp_path, *say) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == f"{tmp_path}/1\n"
        with own_home(tmp_path, *say) as second:
            assert second.communicate("\n", timeout=60)[0] == f"{tmp_path}/2\n"
        first.communicate("\n", timeout=60)
    with own_home(tmp_path, *say) as third:
        assert third.communicate("\n", timeout=60)[0] == f"{tmp_path}/1\n"


def test_locks_that_do_not_work_end_it(tmp_path: Path) -> None:
    flock = tmp_path / "flock"
    flock.write_text("#!/bin/sh\necho 'flock: No locks available' >&2\nexit 71\n")
    flock.chmod(0o755)
    with own_home(tmp_path, "true", path=str(tmp_path)) as process:
        try:
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 71
    assert "No locks available" in said
    assert not (tmp_path / "2").exists()
