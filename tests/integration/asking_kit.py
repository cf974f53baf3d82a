"""A family whose experts are finished from the start: files of random weights in the homes of real nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from shoal.node.base.home import Home
from shoal.node.client.up.processes import Children
from shoal.node.experts.card import hash_file, make_card
from shoal.node.experts.library import FILE
from shoal.node.experts.parts import experts_of, last_round
from shoal.node.experts.records import FamilyRecords
from shoal.node.manifest.manifest import Manifest, parse_manifest
from shoal.node.manifest.model import ModelSpec
from shoal.node.training.data.store import Store
from shoal.protocol.base.ids import RunId
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import RealNode, until
from tests.run_kit import NONCE, id_of
from tests.unit.serve.ensemble.kit import theta, write_file

TINY = ModelSpec(vocab=256, dim=16, layers=1, heads=2, kv_heads=1, hidden=16, context=512)
HEAD = """
name = "fam"
[method]
name = "experts"
inner_steps = 4
[experts]
steps = 4
"""
NOTHING = 1e-6  # GiB: no node keeps another's files
SEEN = 60.0  # seconds until a process's offer is seen by others, on a busy machine


def text_of(model: ModelSpec, *parts: str) -> str:
    """The family's manifest, as a person writes it."""
    shape = model.model_dump(exclude_defaults=True, exclude={"name"})
    lines = ["[model]", *(f"{key} = {value}" for key, value in shape.items())]
    for part in parts:
        lines += ["[[experts.parts]]", f'name = "{part}"', 'only = ["json/*"]']
    return HEAD + "\n".join(lines)


def plant(home: Home, manifest: Manifest, family: RunId, part: str, seed: int) -> None:
    """A finished expert of a part, of the weights that a seed gives, as if this node had trained it."""
    spec = experts_of(manifest).part(part)
    assert spec is not None
    signer = Identity.load_or_create(home.identity_key).signer(family)
    home.experts.mkdir(exist_ok=True)
    model = manifest.model
    assert isinstance(model, ModelSpec)
    made = Store(home.experts, FILE, hash_file).take(lambda path: write_file(path, theta(seed, model), model))
    last = last_round(manifest, spec)
    card = make_card(family, part, made, last, last * 4, 100, 3.0, signer)
    FamilyRecords(home.make_run_folder(family.hex())).put_card(card)


def are_answered(node: RealNode, family: str, counts: dict[str, int]) -> bool:
    """Whether a node knows of so many peers that answer for each part."""
    parts = {each["part"]: each["files"] for each in node.client.expert_sources(family)["parts"]}
    return all(any(len(file["peers"]) >= count for file in parts[part]) for part, count in counts.items())


class Answerer:
    """One `shoal experts answer`."""

    def __init__(self, node: RealNode, *parts: str, flags: tuple[str, ...] = ()) -> None:
        command = [sys.executable, "-m", "shoal.node", "experts", "answer", "fam", *parts, "--device", "cpu", *flags]
        environment = os.environ | {"SHOAL_HOME": str(node.home.root), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def start_nodes(
    children: Children, folder: Path, planted: Mapping[str, Mapping[str, int]], model: ModelSpec = TINY
) -> dict[str, RealNode]:
    """Nodes by name, all in the family, none of which trains; `planted` has the seeds of each one's experts by parts.

    The first founds the family.
    """
    parts = sorted({part for its in planted.values() for part in its})
    text = text_of(model, *parts)
    manifest = parse_manifest(text)
    nodes = {name: RealNode(folder / name) for name in planted}
    first, *others = nodes.values()
    family = id_of(manifest, Identity.load_or_create(first.home.create().identity_key).peer)
    for name, its in planted.items():
        for part, seed in its.items():
            plant(nodes[name].home, manifest, family, part, seed)
    first.start(children, data_limit=NOTHING)
    assert first.client.create_run(text, False, (), NONCE.hex())["run"] == family.hex()
    link = first.client.run_link("fam")["link"]
    for node in others:
        node.launch(children, first.address, data_limit=NOTHING)
    for node in others:
        node.ready()
        until(partial(_knows_a_server, node), "a server", node.words)
        node.client.join_run(link, False)
    return nodes


def _knows_a_server(node: RealNode) -> bool:
    return bool(node.client.status()["dht"]["servers"])
