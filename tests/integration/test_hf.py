"""Real daemons train what Hugging Face's libraries build: a tiny model, and adapters on one that stands still.

The founder's machine makes the first weights; the others download them. All hold the same bytes at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shoal.node.api.answers import Answer
from shoal.node.base.fork_server import ForkServer
from shoal.node.base.step_options import TrainerOptions
from shoal.node.client.up.processes import Children
from shoal.node.training.checkpoint.export import export
from shoal.node.training.checkpoint.read import load
from shoal.node.training.checkpoint.scan import find
from shoal.node.training.models.hf import quietly
from tests.hf_kit import CONFIG, base_folder, needs
from tests.integration.nodes import RealNode, join_all, until, words_of, write_text

transformers = needs("transformers")

LAST = 3
MANIFEST = """
name = "tiny-hf"
[model]
name = "hf"
context = 32
config = {config}
{lora}
[data]
name = "files"
[method]
inner_steps = 6
batch = 4
inner_lr = 1e-2
warmup_steps = 2
[rounds]
last = {last}
pace = "steps"
chunk_bytes = 8192
"""


@pytest.fixture
def children(forking: ForkServer) -> Iterator[Children]:
    with Children(grace=0.0, server=forking) as started:
        yield started


@pytest.mark.slow
@pytest.mark.swarm
def test_two_daemons_train_a_model_of_transformers(children: Children, tmp_path: Path) -> None:
    nodes, run = play(children, tmp_path, MANIFEST.format(config=CONFIG, lora="", last=LAST))
    assert len({node.saved_state(run) for node in nodes}) == 1
    records: Sequence[Answer] = nodes[0].client.rounds(run)
    assert [each["round"] for each in records] == [1, 2, 3]
    assert all(each["contributors"] == 2 for each in records)
    assert records[-1]["loss"] < 0.9 * records[0]["loss"]
    checkpoint = checkpoints(nodes[1])[0]
    export(checkpoint, tmp_path / "exported")
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tensors = load(checkpoint).shape.layout
    assert sum(each.numel() for each in opened.parameters()) == tensors.size


@pytest.mark.slow
def test_two_daemons_train_adapters_on_a_base_that_each_has(children: Children, tmp_path: Path) -> None:
    peft = needs("peft")
    base = base_folder(tmp_path / "base")
    before = {path.name: path.read_bytes() for path in base.iterdir()}
    lora = 'lora = { rank = 4, alpha = 8.0, targets = ["q_proj", "v_proj", "up_proj"] }'
    manifest = MANIFEST.format(config=CONFIG, lora=lora, last=LAST)
    nodes, run = play(children, tmp_path, manifest, (base,))
    assert len({node.saved_state(run) for node in nodes}) == 1
    records: Sequence[Answer] = nodes[0].client.rounds(run)
    assert all(each["contributors"] == 2 for each in records)
    assert records[-1]["loss"] < records[0]["loss"]
    assert {path.name: path.read_bytes() for path in base.iterdir()} == before
    checkpoint = checkpoints(nodes[1])[0]
    assert load(checkpoint).shape.layout.size < 4000, "only the adapters travel"
    export(checkpoint, tmp_path / "adapters")
    opened = transformers.AutoModelForCausalLM.from_pretrained(base)
    with quietly():
        adapted = peft.PeftModel.from_pretrained(opened, tmp_path / "adapters")
    moved = {name for name, each in adapted.named_parameters() if "lora_B" in name and each.abs().max() > 0}
    assert len(moved) == 6, "three targets in two layers have learned something"


def play(children: Children, folder: Path, manifest: str, weights: tuple[Path, ...] = ()) -> tuple[list[RealNode], str]:
    """Two nodes that train the manifest's run to its end."""
    text, options = write_text(folder), TrainerOptions(weights=tuple(map(str, weights)))
    first = RealNode(folder / "n0").start(children, data=(text,), trainer=options)
    second = RealNode(folder / "n1").start(children, first.address, trainer=options)
    nodes = [first, second]
    run = join_all(nodes, manifest)
    until(lambda: all(node.round() == LAST for node in nodes), "the last round", lambda: words_of(*nodes))
    until(lambda: all(map(checkpoints, nodes)), "the last round's checkpoint", lambda: words_of(*nodes))
    return nodes, run


def checkpoints(node: RealNode) -> list[Path]:
    """The checkpoints of the last round."""
    return [each.path for each in find(node.home.root) if each.about is not None and each.about.round == LAST]
