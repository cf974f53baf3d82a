"""Each method in a real swarm: a daemon dies in an all-reduce, a newcomer takes its place, and all agree to the bit.

After the death too few members are left, so that the run waits for the newcomer: each round but the fatal one has the
same three members, however fast the machine is, and what they send can be held against the method's formula.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from shoal.node.api.answers import Answer
from shoal.node.base.fork_server import ForkServer
from shoal.node.client.up.processes import Children
from shoal.node.manifest.manifest import Manifest, parse_manifest
from shoal.node.manifest.requirements import requirements
from shoal.node.training.methods.registry import method_of
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.models.registry import layout_of
from shoal.protocol.averaging.chunks import chunk_bounds
from shoal.protocol.tensors.compression import codec
from tests.integration.nodes import RealNode, join_all, until, words_of, write_text
from tests.integration.swarm import FATAL, MEMBERS, Swarm

CHUNK = 16_384  # bytes: a block of topk, so that no codec's payload is padded but the last
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
batch = 2
warmup_steps = 2
inner_lr = 5e-3
{settings}
[rounds]
min_members = 3
start_members = 3
last = {last}
pace = "steps"
chunk_bytes = {chunk}
{codecs}
"""


@dataclass(frozen=True)
class Play:
    """A method, and how long it is trained by."""

    name: str
    settings: str = "inner_steps = 12"
    last: int = 6
    falls: float = 0.9  # the loss of the last round is below so much of the first one's
    codecs: str = ""  # a table of the manifest

    @property
    def manifest(self) -> str:
        words = {"name": self.name, "settings": self.settings, "last": self.last, "codecs": self.codecs}
        return MANIFEST.format(**words, chunk=CHUNK)


CODECS = '[codec]\nscatter = "fp4"\ngather = "int8"'  # test_codecs.py, which has all of them, takes long
# Three fragments, and never a pause.
STREAMING = Play("streaming-diloco", "inner_steps = 30\ndelay = 10", last=9, codecs=CODECS)
SPARSE = Play("sparseloco", falls=0.96)  # a 64th of the numbers in a round: it learns slowly
DELAYED = Play("diloco-delayed", "inner_steps = 20")
LATE = [Play("diloco-eager"), Play("diloco-delayed"), Play("co2")]
PLAYS = [STREAMING, SPARSE, *LATE, Play("ddp", "", last=24), Play("diloco")]


@pytest.fixture
def children(forking: ForkServer) -> Iterator[Children]:
    with Children(grace=0.0, server=forking) as started:  # how nodes say goodbye is looked at elsewhere
        yield started


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.name)
def test_a_run_trains_through_a_death_and_an_arrival(swarm: Swarm, play: Play) -> None:
    members, newcomer = swarm.gather()
    *others, victim = members
    run = join_all(members, play.manifest)
    until(lambda: not victim.is_running, "the fault to fire", swarm.words)
    assert "fault fired" in victim.words()
    newcomer.client.join_run(run, True)
    live = [*others, newcomer]
    until(lambda: all(node.round() == play.last for node in live), "the last round", swarm.words)

    assert len({node.saved_state(run) for node in live}) == 1
    records: list[Sequence[Answer]] = [node.client.rounds(run) for node in live]
    assert [each["round"] for each in records[0]] == list(range(1, play.last + 1))
    assert records[0][FATAL - 1]["contributors"] >= MEMBERS - 1
    assert records[-1][-1]["took_part"]
    assert records[-1][-1]["tokens"] > 0
    assert records[0][-1]["loss"] < play.falls * records[0][0]["loss"], [each["loss"] for each in records[0]]
    check_traffic(parse_manifest(play.manifest), records)


@pytest.mark.slow
@pytest.mark.parametrize("play", [STREAMING, DELAYED], ids=lambda play: play.name)
def test_a_worker_dies_while_a_mean_is_under_way(children: Children, tmp_path: Path, play: Play) -> None:
    text = write_text(tmp_path)
    first = RealNode(tmp_path / "n0").start(children, data=(text,))
    bereaved, _ = others = [RealNode(tmp_path / f"n{index}") for index in (1, 2)]
    bereaved.prefix = ("env",)  # by itself, so that its worker is its child
    for node in others:
        node.launch(children, first.address, data=(text,))
    nodes = [first, *(node.ready() for node in others)]
    words = partial(words_of, *nodes)
    run = join_all(nodes, play.manifest)
    until(lambda: bereaved.round() >= 2 and bereaved.row()["step"] > 0, "training to go on", words)
    (worker,) = bereaved.workers
    os.kill(worker, signal.SIGKILL)
    until(lambda: "SIGKILL" in bereaved.log.read_text(), "the daemon to miss its worker", words)
    until(lambda: all(node.round() == play.last for node in nodes), "the last round", words)

    assert len({node.saved_state(run) for node in nodes}) == 1
    last = bereaved.client.rounds(run)[-1]
    assert (last["members"], last["contributors"]) == (MEMBERS, MEMBERS)
    assert last["tokens"] > 0


def check_traffic(manifest: Manifest, records: Sequence[Sequence[Answer]]) -> None:
    """Rounds of all members: together they send each chunk to its owner, and its mean back, but to themselves.

    On a busy machine something may be sent twice in one round: the least of a part's rounds is what counts.
    """
    took_part = [row for rows in records for row in rows if row["took_part"] and row["contributors"] == MEMBERS]
    reports = Counter(row["round"] for row in took_part)
    sent = {round: sum(row["bytes"] for row in took_part if row["round"] == round) for round in sorted(reports)}
    sent = {round: size for round, size in sent.items() if reports[round] == MEMBERS}  # else the victim's is not there
    fragments = manifest.method.fragments
    least = [min(size for round, size in sent.items() if round % fragments == each) for each in range(fragments)]
    print(
        f"\n{manifest.method.name}: in rounds {sent}; {sum(least) / fragments / MEMBERS:,.0f} bytes a member and round"
    )
    assert least == [(MEMBERS - 1) * payload(manifest, fragments + each) for each in range(fragments)]
    assert sum(least) / fragments / MEMBERS == pytest.approx(requirements(manifest, MEMBERS).sent, rel=0.03)


def payload(manifest: Manifest, round: int) -> int:
    """Bytes of a round's part, there and back, as its chunks are encoded."""
    layout = layout_of(manifest.model)
    method = method_of(manifest, layout)
    fragment = method.fragment(Timetable(method).part(round))
    scatter, gather = codec(manifest.codec.scatter), codec(manifest.codec.gather)
    bounds = chunk_bounds(layout.size if fragment is None else fragment.size, CHUNK, max(scatter.block, gather.block))
    return sum(each.bytes_for(stop - start) for start, stop in bounds for each in (scatter, gather))
