"""A run of replicas between member, state and worker: exchanges, lapsed rounds, copies, and stops."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from shoal.node.manifest.manifest import Introduction, Manifest, ModelSpec, RoundSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.run.facts import first_history
from shoal.node.run.log_store import FOLDER, STATE
from shoal.node.run.phases import PhaseLog
from shoal.node.run.replica_run import ReplicaRun
from shoal.node.run.saving import newest_state
from shoal.node.run.settings import RunSettings
from shoal.node.training.checkpoint.about import MODEL
from shoal.node.training.checkpoint.keep import Keeping
from shoal.node.training.checkpoint.scan import CHECKPOINTS, folder_name
from shoal.node.training.state.outer import Outcome
from shoal.node.training.state.replica_state import ReplicaState
from shoal.protocol.base.effects import Persist
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import MAX_INT, Payload, encode
from shoal.protocol.log.keeper import LogSkipped
from shoal.protocol.member.facts import FOUNDING_LIFE
from shoal.protocol.messages.log import Admit, Asks, Request
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.net.peers.network import Network
from shoal.protocol.replicas.events import Exchanged, Lapse, Lapsed, ReplicaReceived
from tests.run_kit import id_of, unsigned
from tests.simulation.signing import FakeSigner

ME, PARTNER = PeerId("me"), PeerId("partner")
MANIFEST = Manifest(
    name="tiny",
    model=ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=32, context=16),
    method=MethodSpec(name="noloco", inner_steps=4),
    rounds=RoundSpec(chunk_bytes=4096),
)


class Bench:
    """A run whose member, driver and worker only listen."""

    def __init__(self, folder: Path, every: int = 0) -> None:
        self.folder = folder / id_of(MANIFEST, ME).hex()
        self.folder.mkdir(exist_ok=True)
        settings = RunSettings(self.folder, 1, (), True, Keeping(every), None)
        self.told: list[Any] = []
        self.samples = {PARTNER: 5000}  # as the others say
        is_new = not (self.folder / FOLDER).exists()
        found = Introduction(MANIFEST, unsigned(MANIFEST, ME), {})
        self.run = ReplicaRun(found, FakeSigner(ME), cast(Network, None), settings, is_founding=is_new)
        self.member = SimpleNamespace(
            base_round=None,
            keeps_vote=True,
            log=SimpleNamespace(register=SimpleNamespace(is_over=False, voters=(ME,))),
            awaited_voters=[],
            membership=SimpleNamespace(alive=lambda: list(self.samples), status=self.status_of),
            submit=lambda now: self.told.append("submitted"),
            applied=self.stands_after,
            opened=lambda now, round, root: self.stands_after(now, root),
        )
        self.training = SimpleNamespace(
            last_loss=2.5,
            note=lambda round, outcome: self.told.append((round, outcome)),
            committed=lambda base, lane, samples: self.told.append(("committed", base)),
            begin=lambda base, lane, samples: self.told.append(("begin", base)),
            moments=self.moments,
        )
        driver = SimpleNamespace(command=lambda step: step(0.0), now=lambda: 1.0, phases=PhaseLog())
        self.run.member, self.run.training, self.run.driver = (
            cast(Any, self.member),
            cast(Any, self.training),
            cast(Any, driver),
        )
        self.at(self.run.outer.committed.current.round)
        self.run._begin_round()

    def status_of(self, peer: PeerId) -> Any:
        return SimpleNamespace(samples=self.samples[peer], trains=True, history=first_history(MANIFEST))

    def at(self, round: int) -> None:
        self.member.base_round = round

    def stands_after(self, now: float, root: bytes) -> None:
        assert root == self.run.outer.root
        self.at(self.run.outer.committed.current.round)

    async def moments(self) -> None:
        return None

    def late(self, round: int, index: int) -> Payload:
        """What is sent to the partner when its turn comes."""
        late = self.run._sources.late(Chunk(round, 1, index, b""))
        assert late.is_wanted()
        return late.make()

    def has_contribution(self, round: int) -> bool:
        return self.run._sources.contribution(round) is not None

    def hands_in(self, round: int, vector: np.ndarray | None, tokens: int = 64) -> None:
        self.run._submit(round, tokens, vector)


def test_who_is_admitted_begins_to_train(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.told.clear()
    bench.run._open_round, bench.member.base_round = 0, None
    founding = bench.run._facts.register()
    bench.run._on_event(LogSkipped(founding, founding))
    assert bench.told == [], "not before"
    bench.at(0)
    bench.run._on_event(LogSkipped(founding, founding))
    bench.run._on_event(LogSkipped(founding, founding))
    assert bench.told == [("begin", 0)], "once"


def test_who_was_killed_knows_whom_it_has_admitted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run._network = cast(Network, SimpleNamespace(addresses=lambda: ()))
    member, branch = bench.run._make_member(), bench.run._facts.run
    asks = signed(Asks(branch, PARTNER, 77, False, b""), FakeSigner(PARTNER))
    effects = member.start(0.0, [])
    effects += member.receive(0.0, PARTNER, Request(branch, 0, encode(Admit((asks,)))))
    for effect in effects:
        if isinstance(effect, Persist):
            bench.run.store.put(effect.name, effect.record)
    past = Bench(tmp_path).run._past
    assert past is not None
    back = past.kept
    assert [each.peer for each in back.register.members] == [ME, PARTNER]
    assert back.register.voters == (ME,)
    assert back.votes.life == FOUNDING_LIFE, "the vote that it had"


def drawn(state: ReplicaState, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(state.elements, dtype=np.float32)


def sent_by(state: ReplicaState, vector: np.ndarray) -> tuple[bytes, ...]:
    encode = state.encoder(vector, 1)
    return tuple(bytes(encode(index)) for index in range(len(state.exchange)))


@pytest.mark.asyncio
async def test_an_exchange_is_applied_told_and_counted(tmp_path: Path) -> None:
    bench, partner = Bench(tmp_path), ReplicaState(MANIFEST)
    first, second = drawn(partner, 1), drawn(partner, 2)
    bench.hands_in(1, first)
    theirs, ours = sent_by(partner, second), sent_by(bench.run.outer, first)
    await bench.run._take(Exchanged(1, PARTNER, theirs, True))
    partner.exchanged(1, partner.exchange.encoder(partner.committed.current.vectors, torch.from_numpy(second)), ours, 1)
    assert bench.run.outer.root == partner.root, "both began equal, and are pulled alike"
    assert bench.told == [("begin", 0), "submitted", (1, Outcome(2, ())), ("committed", 1)]
    (record,) = bench.run.commits.as_json()
    assert (record["partner"], record["lapse"], record["tokens"], record["samples"]) == (PARTNER, "", 64, 64)
    assert record["words"].startswith("exchanged with")
    assert bench.run.meters.exchanges == {"mutual": 1}


@pytest.mark.asyncio
async def test_a_round_that_passes_changes_nothing_and_its_reason_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.run")
    bench = Bench(tmp_path)
    root = bench.run.outer.root
    bench.hands_in(1, drawn(bench.run.outer, 1))
    await bench.run._pass(Lapsed(1, Lapse.BYE))
    await bench.run._pass(Lapsed(4, Lapse.BEHIND))  # without a hand-in
    assert (bench.run.outer.root, bench.run.outer.committed.current.round) == (root, 4)
    assert bench.told == [("begin", 0), "submitted", ("committed", 1), ("committed", 4)], "no answer is noted"
    assert bench.run.samples == 64
    assert bench.run.meters.exchanges == {"bye": 1, "behind": 1}
    assert "the others are pairs without this node" in caplog.text
    assert bench.run.commits.as_json()[0]["words"] == "no exchange: the others are pairs without this node"


@pytest.mark.asyncio
async def test_a_partner_that_may_not_have_ours_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    vector = drawn(bench.run.outer, 1)
    bench.hands_in(1, vector)
    await bench.run._take(Exchanged(1, PARTNER, sent_by(bench.run.outer, vector), False))
    assert "may not have taken" in caplog.text
    assert bench.run.meters.exchanges == {"one-sided": 1}


@pytest.mark.asyncio
async def test_who_has_nothing_to_hand_in_sends_its_replica_as_it_stands(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.hands_in(1, None, tokens=0)
    sent = [bytes(bench.late(1, index)) for index in range(len(bench.run.outer.exchange))]
    half = len(sent) // 2
    assert not any(b"".join(sent[half:])), "no change"
    assert any(b"".join(sent[:half])), "its slow weights"


@pytest.mark.asyncio
async def test_a_copied_replica_begins_training_anew(tmp_path: Path) -> None:
    bench, donor = Bench(tmp_path), ReplicaState(MANIFEST)
    vector = drawn(donor, 3)
    donor.exchanged(1, donor.encoder(vector, 1), sent_by(donor, vector), 0)
    donor.passed(20)
    current = donor.committed.current
    states = bench.run._states
    assert states.begin(20, current.shape.header, current.chunk_hashes) == set()
    for index in range(len(current.shape.chunks)):
        states.put(index, bytes(current.chunk(index)))
    bench.hands_in(1, vector)
    draft = states.take(20)
    assert draft is not None
    await bench.run._install(ReplicaReceived(20, current.root, PARTNER), draft)
    assert bench.run.outer.root == donor.root
    assert bench.told[-1] == ("begin", 20)
    assert bench.run.samples == 5000, "its donor's line is its own"
    assert not bench.has_contribution(1)
    await bench.run._pass(Lapsed(21, Lapse.ALONE))
    (record,) = bench.run.commits.as_json()
    assert (record["tokens"], record["loss"], record["seconds"], bench.run.samples) == (0, None, 0.0, 5000)


@pytest.mark.parametrize(("others", "expected"), [((), MAX_INT // 2), ((900, 4000), 4000), ((7, 8), 8)])
def test_no_donor_says_alone_how_many_samples_there_are(tmp_path: Path, others: tuple[int, ...], expected: int) -> None:
    bench = Bench(tmp_path)
    bench.samples = {PARTNER: MAX_INT, **{PeerId(f"other-{index}"): said for index, said in enumerate(others)}}
    assert bench.run._samples_of(PARTNER) == expected
    assert bench.run._samples_of(PeerId("gone")) == 0


@pytest.mark.asyncio
async def test_who_stops_goes_on_from_its_own_replica(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    vector = drawn(bench.run.outer, 1)
    bench.hands_in(1, vector)
    await bench.run._take(Exchanged(1, PARTNER, sent_by(bench.run.outer, vector), True))
    await bench.run._keep()
    back = Bench(tmp_path)
    assert (back.run.outer.root, back.run.outer.committed.current.round) == (bench.run.outer.root, 1)
    assert back.run.samples == 64
    assert back.told == [("begin", 1)]
    await back.run._keep()  # nothing new to keep


@pytest.mark.asyncio
async def test_a_damaged_or_foreign_replica_does_not_hide_an_older_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, every=1)
    await bench.run._pass(Lapsed(1, Lapse.BYE))
    await bench.run.saving.written()
    await bench.run._pass(Lapsed(2, Lapse.BYE))
    await bench.run.saving.written()
    await bench.run._pass(Lapsed(3, Lapse.BYE))
    await bench.run.saving.written()
    await bench.run._keep()
    kept = bench.folder / FOLDER / STATE / folder_name(3)
    for path in (kept, bench.folder / CHECKPOINTS / folder_name(3)):
        (path / MODEL).write_bytes(b"torn")
    found = newest_state(bench.folder, id_of(MANIFEST, ME))
    assert found is not None
    assert found.about.round == 2
    assert newest_state(bench.folder, RunId(bytes(32))) is None


@pytest.mark.asyncio
async def test_who_is_killed_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path, every=1)
    vector = drawn(bench.run.outer, 1)
    bench.hands_in(1, vector)
    await bench.run._take(Exchanged(1, PARTNER, sent_by(bench.run.outer, vector), True))
    await bench.run.saving.written()
    kept = newest_state(bench.folder, id_of(MANIFEST, ME))
    assert kept is not None
    assert (kept.about.round, kept.about.root) == (1, bench.run.outer.root.hex())
