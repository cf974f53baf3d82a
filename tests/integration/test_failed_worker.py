"""A worker that fails for good: said by the first who can know, shown in its own words, and waited for by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.base import devices
from shoal.node.base.exits import Exit
from shoal.node.client.up.processes import Children
from tests.bad_situations import shown
from tests.integration.nodes import PATIENCE, RealNode, until
from tests.integration.test_node import MANIFEST


def shoal(home: Path, *arguments: str) -> tuple[int, str]:
    environ = {**os.environ, "SHOAL_HOME": str(home)}
    argv = [sys.executable, "-P", "-m", "shoal.node", *arguments]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(devices.has_gpu("auto"), reason="DOES NOT RUN: this machine has a GPU, so cuda may be here")
@pytest.mark.parametrize("command", ["node start", "node start --foreground", "up"])
def test_a_device_that_cannot_be_here_is_refused_before_anything_starts(tmp_path: Path, command: str) -> None:
    code, said = shoal(tmp_path / "home", *command.split(), "--device", "cuda")
    assert code == Exit.USAGE
    assert "--device cuda is not here: " in said
    assert "use --device cpu or auto" in said
    assert said.count("\n") == 1


def spoilt(folder: Path, kind: str = "LocalError") -> tuple[str, str]:
    """A python in which workers, forked ones too, cannot read their text, for an error of this kind; its variable and
    value.
    """
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if {'shoal.node.worker.worker', 'shoal.node.client.up.forking'} & set(sys.orig_argv):\n"
        "    import shoal.node.training.data.corpus as corpus\n"
        "    from shoal.protocol.base.errors import LocalError\n"
        "    def load_corpus(*_):\n"
        f"        raise {kind}('the text of this run cannot be read here')\n"
        "    corpus.load_corpus = load_corpus\n"
    )
    return "PYTHONPATH", str(folder)


@pytest.mark.slow
def test_its_own_words_are_shown_and_no_other_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*spoilt(tmp_path))
    with Children() as children:  # without the fork server of all tests, which is not spoilt
        node = RealNode(tmp_path / "node").start(children)
        code, said = _see_the_words_of(node)
        shown("the worker cannot do its work: it cannot read the text", code, said + node.words())


def _see_the_words_of(node: RealNode) -> tuple[int, str]:
    """What `status --exit-code` says of the failure."""
    node.client.create_run(MANIFEST, True)
    until(lambda: node.row()["worker_failure"], "the failure", node.words)
    failure = node.row()["worker_failure"]
    assert failure == "the worker has failed: the text of this run cannot be read here"
    code, said = shoal(node.home.root, "status", "--exit-code")
    assert f"{failure}. No other is started: mend that, then" in said
    log = (node.home.run_folder(node.row()["run"]) / "worker.log").read_text()
    assert log.count("worker: the text of this run cannot be read here") == 1
    assert node.row()["phase"] != "failed", "the node keeps the state and its vote"
    return code, said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LocalError", "RuntimeError"])
def test_up_ends_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """At once, or, if it is a mistake of a program, after a few more lives of the worker, which are told of."""
    monkeypatch.setenv(*spoilt(tmp_path, kind))
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    out = str(tmp_path / "out")
    code, said = shoal(tmp_path / "home", "up", "--peers", "2", "--manifest", str(manifest), "--out", out)
    assert code == 1
    named = "RuntimeError: " if kind == "RuntimeError" else ""
    assert f"cannot train: the worker has failed: {named}the text of this run cannot be read here" in said
    assert "Traceback" not in said
    lost = "peer-1: the worker has failed: RuntimeError: the text of this run cannot be read here; it is started again"
    assert said.count(lost) == (1 if kind == "RuntimeError" else 0)
