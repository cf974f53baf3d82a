"""Real nodes of a family of experts: all parts are trained and published, also if one node is killed; nothing else goes
from node to node, and what is published is what was trained.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from shoal.node.api.answers import Answer
from shoal.node.client.up.processes import Children
from shoal.node.experts.claims import LEASE, LOOK, SETTLE
from shoal.node.experts.parts import experts_of
from shoal.node.experts.posterior import uniform
from shoal.node.manifest.manifest import parse_manifest
from shoal.node.training.models.registry import layout_of
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId
from shoal.protocol.base.signing import check_signature
from shoal.protocol.base.wire import decode
from shoal.protocol.messages.directory import ExpertCard
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import RealNode, until
from tests.unit import checkpoint_kit

HEAD = """
name = "fam"
seed = 7
[model]
dim = 32
layers = 1
heads = 2
kv_heads = 1
hidden = 64
context = 32
[method]
name = "experts"
inner_steps = 4
batch = 2
warmup_steps = 2
"""
PARTS = """
[[experts.parts]]
name = "net"
only = ["asyncio/*", "http/*"]
[[experts.parts]]
name = "text"
only = ["json/*", "email/*"]
"""
SHORT = f"{HEAD}[experts]\nsteps = 40\npublish_every = 2\n{PARTS}"
TAKEOVER = LEASE + 1.1 * LOOK + SETTLE + 30  # and a busy machine


def parts(node: RealNode, family: str) -> dict[str, Answer]:
    return {row["part"]: row for row in node.client.experts(family)}


def published(row: Answer) -> int:
    return int(row["published"]["round"]) if row["published"] else 0


def are_finished(node: RealNode, family: str) -> bool:
    """Whether all parts are finished, and all files are here."""
    return all(row["finished"] and row["published"]["here"] for row in parts(node, family).values())


def payload_bytes(node: RealNode) -> int:
    """Payload bytes of all runs, as far as they are open."""
    rows = node.client.status()["runs"]
    return sum(count["sent"] + count["received"] for row in rows for count in (row["bulk"] or {}).values())


def words_of(*nodes: RealNode) -> str:
    return "\n".join(f"{node.folder.name}:\n{node.words()}" for node in nodes)


@pytest.mark.slow
@pytest.mark.swarm
def test_two_nodes_train_two_parts_apart_and_publish_them(children: Children, tmp_path: Path) -> None:
    first = RealNode(tmp_path / "first").start(children)
    second = RealNode(tmp_path / "second").start(children, first.address)
    until(lambda: second.client.status()["dht"]["servers"], "the second node to know a server", second.words)
    family = first.client.create_run(SHORT, True)["run"]
    assert second.client.join_run(first.client.run_link(family)["link"], True)["run"] == family

    def all_done() -> bool:
        assert payload_bytes(first) == payload_bytes(second) == 0, "experts have exchanged something"
        return are_finished(first, family) and are_finished(second, family)

    until(all_done, "both parts", lambda: words_of(first, second))
    taken = [set(re.findall(r"training the part (\w+) of fam", node.log.read_text())) for node in (first, second)]
    assert set.union(*taken) == {"net", "text"}
    for node in (first, second):
        (row,) = (row for row in node.client.status()["runs"] if row["run"] == family)
        assert (row["phase"], row["experts"]) == ("finished", {"parts": 2, "finished": 2, "trains": None})

    answer = second.client.fetch_experts(family, str(tmp_path / "out"))
    assert answer["missing"] == []
    check_ensemble(tmp_path / "out", family)
    with pytest.raises(LocalError, match="absolute"):
        second.client.fetch_experts(family, "out")
    second.client.leave_run(family)
    assert second.client.status()["runs"] == []
    with pytest.raises(LocalError, match="in no family"):
        second.client.experts(family)


def check_ensemble(folder: Path, family: str) -> None:
    """The files are what the cards say, by whom they say, and models."""
    ensemble = json.loads((folder / "ensemble.json").read_text())
    assert (ensemble["family"], ensemble["complete"]) == (family, True)
    manifest = parse_manifest(SHORT)
    me = Identity.generate().signer(RunId(bytes.fromhex(family)))
    vectors = []
    for each in ensemble["experts"]:
        card = decode(bytes.fromhex(each["card"]))
        assert isinstance(card, ExpertCard)
        check_signature(card, card.author, me)
        assert card.file.hex() == each["blake3"]
        assert each["steps"] == 40
        assert each["prior"] == pytest.approx(uniform(2).exp()[0].item())
        vectors.append(layout_of(manifest.model).pack(load_file(folder / each["file"])))
    assert len(vectors) == 2
    assert not vectors[0].equal(vectors[1])


@pytest.mark.slow
@pytest.mark.swarm
def test_a_killed_nodes_part_is_taken_over_from_its_published_file(children: Children, tmp_path: Path) -> None:
    """The one that is killed trains the longer part; the other, when it is done with its own, goes on from the file."""
    long = f"{HEAD}[experts]\nsteps = 80000\npublish_every = 4\n{PARTS}steps = 40\n"
    first = RealNode(tmp_path / "first").start(children)
    second = RealNode(tmp_path / "second").start(children, first.address)
    until(lambda: second.client.status()["dht"]["servers"], "the second node to know a server", second.words)
    family = first.client.create_run(long, True)["run"]
    second.client.join_run(family, True)
    nodes = {node.client.status()["peer"]: node for node in (first, second)}

    def words() -> str:
        return words_of(first, second)

    def owner() -> str | None:
        return parts(first, family)["net"]["peer"] or parts(second, family)["net"]["peer"]

    until(owner, "somebody to train the part", words)

    def kept() -> bool:
        """The other has a file of the part."""
        survivor = next(node for peer, node in nodes.items() if peer != owner())
        row = parts(survivor, family)["net"]
        return published(row) >= 8 and row["published"]["here"]

    until(kept, "a file of the part at the other node", words)
    victim = nodes.pop(str(owner()))
    (survivor,) = nodes.values()
    os.kill(victim.pid, signal.SIGKILL)
    before = published(parts(survivor, family)["net"])
    assert before < 20_000, "the part was finished too soon for this test"
    me = survivor.client.status()["peer"]
    took = until(
        lambda: parts(survivor, family)["net"]["peer"] == me and parts(survivor, family)["net"]["run"],
        "the part to be taken over",
        words,
        TAKEOVER + 60,
    )
    print(f"\ntaken over {took:.1f} s after the death")

    def begun() -> list[str]:
        """The rounds from which the survivor says that it goes on; a thread writes its log, soon after the fact."""
        return re.findall(r"training the part net of fam from round (\d+)", survivor.log.read_text())

    until(begun, "the survivor to say from where it goes on", words)
    assert int(begun()[-1]) >= 8, begun()
    until(lambda: published(parts(survivor, family)["net"]) > before, "a file beyond", words)


@pytest.mark.slow
def test_a_lone_node_that_is_killed_goes_on_where_it_was(children: Children, tmp_path: Path) -> None:
    """With a seed; nobody else has anything. It is killed between two files, and goes on from its own checkpoint."""
    only = PARTS[: PARTS.index('[[experts.parts]]\nname = "text"')]
    manifest = f"{HEAD}[experts]\nsteps = 80000\npublish_every = 5000\n{only}"
    trained = parse_manifest(HEAD.replace('"experts"', '"diloco"'))
    seed = str(checkpoint_kit.write(tmp_path / "seed", 4, trained))
    node = RealNode(tmp_path / "node").start(children, checkpoint_every=3)
    with pytest.raises(LocalError, match="neither the family's nor one of its parts'"):
        node.client.create_run(manifest.replace("hidden = 64", "hidden = 32"), True, [seed])
    family = node.client.create_run(manifest, True, [seed])["run"]
    until(lambda: parts(node, family)["net"]["steps"] >= 40, "some rounds", node.words)
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: not node.is_running, "the death", node.words)
    node.start(children, checkpoint_every=3)
    until(lambda: any(row["experts"] for row in node.client.status()["runs"]), "it to be in the family", node.words)
    until(lambda: parts(node, family)["net"]["steps"] > 60, "it to go on", node.words)
    began, again = re.split(r"in run \w+ again", node.log.read_text())[0::2]
    assert "training the part net of fam from round 0" in began
    assert min(map(int, re.findall(r"checkpoint of round (\d+)", again))) > 6


@pytest.mark.slow
def test_each_model_of_a_family_begins_with_its_own_seed_which_comes_from_the_founder(
    children: Children, tmp_path: Path
) -> None:
    """The founder does not train; whoever does has the seeds from it. The tokens behind a file tell them apart."""
    toml = f"{SHORT}\n[experts.parts.model]\ndim = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nhidden = 24\ncontext = 16\n"
    family = parse_manifest(toml)
    models = {part.name: part.model or family.model for part in experts_of(family).parts}
    seeds = []
    behind = {"net": 10_000, "text": 20_000}
    for part, model in models.items():
        trained = parse_manifest(HEAD.replace('"experts"', '"diloco"')).model_copy(update={"model": model})
        seeds.append(str(checkpoint_kit.write(tmp_path / part, 4, trained, samples=behind[part])))
    first = RealNode(tmp_path / "first").start(children)
    second = RealNode(tmp_path / "second").start(children, first.address)
    until(lambda: second.client.status()["dht"]["servers"], "the second node to know a server", second.words)
    run = first.client.create_run(toml, False, seeds)["run"]
    second.client.join_run(first.client.run_link(run)["link"], True)
    until(lambda: are_finished(second, run), "both parts to be finished", lambda: words_of(first, second))
    found = {part: row["published"]["tokens"] for part, row in parts(second, run).items()}
    assert found == {part: tokens + 40 * 2 * models[part].context for part, tokens in behind.items()}


@pytest.mark.slow
def test_groups_of_like_texts_are_parts_and_their_partition_is_a_file(children: Children, tmp_path: Path) -> None:
    """The second node has no text of its own: data and partition come from the first."""
    subjects = ("flour butter oven bread", "harbour anchor sail mast")
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(80):
        words = f"{subjects[number % 2]} {number} " * (20 + number % 7)
        (texts / f"{number}.txt").write_text(words)
    first = RealNode(tmp_path / "first").start(children, data=(texts,))
    second = RealNode(tmp_path / "second").start(children, first.address)
    until(lambda: second.client.status()["dht"]["servers"], "the second node to know a server", second.words)
    toml = f'{HEAD}[data]\nname = "files"\n[experts]\nsteps = 20\npublish_every = 2\n[experts.clusters]\ncount = 2\n'
    family = first.client.create_run(toml, True)["run"]
    second.client.join_run(first.client.run_link(family)["link"], True)
    until(
        lambda: are_finished(first, family) and are_finished(second, family), "groups", lambda: words_of(first, second)
    )
    assert set(parts(second, family)) == {"cluster-0", "cluster-1"}
    nodes = (first, second)
    files = [{path.parent.name for path in node.home.experts.glob("*/expert.safetensors")} for node in nodes]
    assert len(files[0] & files[1]) == 3, "two experts, and the partition"
    first.client.fetch_experts(family, str(tmp_path / "out"))
    described = json.loads((tmp_path / "out" / "ensemble.json").read_text())
    assert (tmp_path / "out" / "partition.safetensors").exists()
    assert described["clusters"]["file"] in files[1]
