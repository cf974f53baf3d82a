"""A real node trains, and a real server serves, where nothing about pictures can be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.integration.test_serve import end, start
from tests.integration.test_serve_live import MANIFEST

ALONE = f"{MANIFEST}[rounds]\nstart_members = 1\nmin_members = 1\n"


@pytest.mark.slow
def test_a_run_of_text_is_trained_and_served(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('shoal.node.diffusion', 'PIL', 'sklearn'):\n    sys.modules[name] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    node = RealNode(tmp_path / "node").start(children)
    node.client.create_run(ALONE, True)
    until(lambda: node.row().get("round", 0) >= 2, "two rounds", node.words)
    process, server = start("living", home=node.home)
    try:
        assert server.about()["round"] >= 1
    finally:
        assert end(process) == 0
