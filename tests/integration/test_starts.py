"""The README's first start, word for word but for the device: a swarm on one machine, and a text that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.starts import GPU, Machine, blocks


@pytest.mark.slow
@pytest.mark.swarm
def test_a_gpu_box(tmp_path: Path) -> None:
    box = Machine(tmp_path / "box")
    (lines,) = blocks(GPU)
    assert "--device cuda" in lines[0]
    up, listed, text = (box.types(line.replace("--device cuda", "--device cpu"), 600) for line in lines)
    assert "hold the same state, bit for bit" in up
    assert (box.folder / "first/report.html").exists()
    assert "round-" in listed
    assert "sheep" in text, "it has learned what the notes are about"
