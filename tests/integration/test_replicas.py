"""Replicas on real nodes: pairs exchange in each round, one is killed, a newcomer copies; in the end all hold one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from shoal.node.api.answers import Answer
from shoal.node.base.fork_server import ForkServer
from shoal.node.client.up.processes import Children
from shoal.node.manifest.manifest import Manifest, parse_manifest
from shoal.node.manifest.requirements import requirements
from shoal.node.run.saving import newest_state
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import build, layout_of
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.state.file import load_state
from shoal.node.training.state.shape import shape_of
from shoal.node.training.trainer.evaluate import AT_MOST, validation_loss
from shoal.protocol.averaging.chunks import chunk_bounds
from shoal.protocol.base.ids import RunId
from shoal.protocol.tensors.compression import codec
from tests.integration.nodes import RealNode, join_all, until, words_of, write_text
from tests.integration.swarm import Swarm
from tests.integration.test_methods import CHUNK

LAST = 6
FAR = 10  # rounds: a newcomer is further behind than two may be apart
WORSE = 0.05  # nats that the mean of all replicas may be worse than the worst of them
OWN = 5  # exchanges that a newcomer has made in the end
MANIFEST = """
name = "tiny"
[model]
vocab = 4096
dim = 32
layers = 2
heads = 2
kv_heads = 1
hidden = 64
context = 32
[data]
name = "files"
[method]
name = "{name}"
inner_steps = 12
batch = 2
warmup_steps = 2
inner_lr = 5e-3
[rounds]
chunk_bytes = {chunk}
{last}
"""


@pytest.fixture
def children(forking: ForkServer) -> Iterator[Children]:
    with Children(grace=0.0, server=forking) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noloco", "gossip"])
def test_two_exchange_in_each_round(children: Children, tmp_path: Path, name: str) -> None:
    text = write_text(tmp_path)
    toml = MANIFEST.format(name=name, chunk=CHUNK, last=f"last = {LAST}")
    first = RealNode(tmp_path / "n0").start(children, data=(text,))
    nodes = [first, RealNode(tmp_path / "n1").start(children, first.address, data=(text,))]
    run = join_all(nodes, toml)
    until(lambda: all(node.round() == LAST for node in nodes), "the last round", lambda: words_of(*nodes))

    records: list[Sequence[Answer]] = [node.client.rounds(run) for node in nodes]
    peers = [node.client.status()["peer"] for node in nodes]
    for rows, partner in zip(records, peers[::-1], strict=True):
        met = [row for row in rows if row["partner"] is not None]
        assert {row["partner"] for row in met} == {partner}
        assert len(met) >= LAST - 2, "one may begin before the other is there, and in the last round nobody exchanges"
        assert all(row["loss"] is not None and row["tokens"] > 0 for row in met)
        assert rows[-1]["loss"] < 0.9 * rows[0]["loss"]
        assert (rows[-1]["contributors"], rows[-1]["entry"] > 0) == (2, True)
        check_traffic(parse_manifest(toml), met)
    assert len({node.saved_state(run) for node in nodes}) == 1


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.parametrize("name", ["noloco", "gossip"])
def test_one_is_killed_near_the_end_and_the_others_end_with_one_checkpoint(swarm: Swarm, name: str) -> None:
    """Whoever comes when all is over gets it, too."""
    members, newcomer = swarm.gather()
    first, second, victim = members
    toml = MANIFEST.format(name=name, chunk=CHUNK, last=f"last = {LAST}")
    run = join_all(members, toml)
    until(lambda: victim.round() >= LAST - 2 or not victim.is_running, "rounds of three", swarm.words)
    victim.kill()
    until(lambda: first.round() == second.round() == LAST, "the last round", swarm.words)
    newcomer.client.join_run(run, True)
    until(lambda: newcomer.round() == LAST, "the result at the newcomer", swarm.words)

    live = [first, second, newcomer]
    assert len({node.saved_state(run) for node in live}) == 1
    until(lambda: all(checkpointed(node, run) for node in live), "checkpoints of the last round", swarm.words)
    assert len({checkpointed(node, run) for node in live}) == 1
    assert first.client.rounds(run)[-1]["contributors"] >= 2
    check_losses(parse_manifest(toml), [first, second], run, swarm.text)


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.parametrize("name", ["noloco", "gossip"])
def test_a_run_of_replicas_outlives_a_death_and_a_newcomer_copies_one(swarm: Swarm, name: str) -> None:
    toml = MANIFEST.format(name=name, chunk=CHUNK, last="")
    members, newcomer = swarm.gather()
    first, second, victim = members
    run = join_all(members, toml)
    until(lambda: victim.round() >= 2 or not victim.is_running, "rounds of three", swarm.words)
    victim.kill()
    reached = first.round()
    until(lambda: min(first.round(), second.round()) >= max(FAR, reached + 3), "rounds after the death", swarm.words)
    newcomer.client.join_run(run, True)
    until(lambda: exchanges(newcomer, run) >= OWN, "exchanges of the newcomer", swarm.words)

    live = [first, second, newcomer]
    newcomer.await_words("copied the replica of")
    rows = newcomer.client.rounds(run)
    assert rows[0]["round"] > FAR
    byes = [row for node in live for row in node.client.rounds(run) if row["lapse"]]
    assert byes, "of three one is left over"
    assert all(row["partner"] is None for row in byes)
    check_nearness(parse_manifest(toml), live, run)
    for node in live:
        # To a partner that was lost meanwhile only a part has been sent.
        whole = [row for row in node.client.rounds(run)[:-1] if row["partner"] and row["is_mutual"]]
        check_traffic(parse_manifest(toml), whole)


@pytest.mark.slow
def test_when_all_have_stopped_each_goes_on_from_its_own_replica(children: Children, tmp_path: Path) -> None:
    text = write_text(tmp_path)
    first = RealNode(tmp_path / "n0").start(children, data=(text,))
    nodes = [first, RealNode(tmp_path / "n1").start(children, first.address, data=(text,))]
    run = join_all(nodes, MANIFEST.format(name="noloco", chunk=CHUNK, last=""))
    until(lambda: all(exchanges(node, run) >= 2 for node in nodes), "exchanges", lambda: words_of(*nodes))
    for node in nodes:
        node.client.stop()
        until(lambda node=node: not node.is_running, "the end", node.words)  # type: ignore[misc]
    kept = [kept_round(node, run) for node in nodes]
    assert min(kept) >= 2
    first.start(children, data=(text,))
    nodes[1].start(children, first.address, data=(text,))  # ports are others now
    until(
        lambda: all(exchanges(node, run) >= 1 for node in nodes), "exchanges after the stop", lambda: words_of(*nodes)
    )
    for node, before in zip(nodes, kept, strict=True):
        assert node.client.rounds(run)[0]["round"] > before
        assert "copied the replica" not in node.log.read_text(), "its own is good enough"


def kept_round(node: RealNode, run: str) -> int:
    """The round of the replica that the node has left on disk."""
    own = newest_state(node.home.run_folder(run), RunId(bytes.fromhex(run)))
    assert own is not None
    return own.about.round


def final_state(node: RealNode, run: str) -> Snapshot | None:
    """What is in the checkpoint of the last round; None if the node has none yet."""
    found = newest_state(node.home.run_folder(run), RunId(bytes.fromhex(run)))
    return found.committed().current if found is not None and found.about.round == LAST else None


def checkpointed(node: RealNode, run: str) -> str:
    """The root of the weights in that checkpoint; empty without one."""
    state = final_state(node, run)
    return state.root.hex() if state is not None else ""


def check_losses(manifest: Manifest, nodes: Sequence[RealNode], run: str, text: Path) -> None:
    """The final checkpoint is no worse than the replicas of which it is the mean, beside whose losses it is printed."""
    held_out = load_corpus(manifest.data, [text], manifest.model.vocab or None).validation

    def loss(weights: Tensor) -> float:
        model = build(manifest)
        Layout.of(model).load(weights, model)
        return validation_loss(model, held_out, manifest.model.context, AT_MOST).loss

    shape, replicas = shape_of(manifest, Layout.of(build(manifest))), list[float]()
    for node in nodes:
        own = node.folder / "own.safetensors"
        node.client.save_state(run, str(own), own=True)
        replicas.append(loss(load_state(own, shape).current.vectors[PARAMETERS]))
    state = final_state(nodes[0], run)
    assert state is not None
    final = loss(state.vectors[PARAMETERS])
    words = ", ".join(f"{each:.3f}" for each in replicas)
    print(f"\n{manifest.method.name}: the final checkpoint has a loss of {final:.3f}, the replicas {words}")
    assert final <= max(replicas) + WORSE


def exchanges(node: RealNode, run: str) -> int:
    """How many a node has made."""
    return sum(row["partner"] is not None for row in node.client.rounds(run)) if node.row() else 0


def check_nearness(manifest: Manifest, nodes: list[RealNode], run: str) -> None:
    """Replicas are nearer to each other than to where all began."""
    model = build(manifest)
    layout = Layout.of(model)
    start = layout.read(model)
    for node in nodes:
        node.saved_state(run)
    saved = [load_file(node.folder / "state.safetensors") for node in nodes]
    ends = [layout.pack({place.name: each[place.name] for place in layout}) for each in saved]
    for one, other in combinations(ends, 2):
        apart, gone = (one - other).norm().item(), min((each - start).norm().item() for each in (one, other))
        print(f"\n{manifest.method.name}: {apart:.3f} apart, {gone:.3f} from the beginning")
        assert apart < 0.7 * gone


def check_traffic(manifest: Manifest, met: Sequence[Answer]) -> None:
    """An exchange sends each chunk once; on a busy machine something may be sent twice, so the least counts."""
    least = min(row["bytes"] for row in met)
    print(f"\n{manifest.method.name}: {least:,} bytes in an exchange")
    assert least == payload(manifest)
    assert least == pytest.approx(requirements(manifest, 2).sent, rel=0.03)


def payload(manifest: Manifest) -> int:
    """Bytes of what goes one way."""
    size = layout_of(manifest.model).size
    scatter, gather = codec(manifest.codec.scatter), codec(manifest.codec.gather)
    codecs = (scatter, gather) if manifest.method.name == "noloco" else (scatter,)
    bounds = chunk_bounds(size, CHUNK, max(scatter.block, gather.block))
    return sum(each.bytes_for(stop - start) for start, stop in bounds for each in codecs)
