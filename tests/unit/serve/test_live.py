"""A model whose weights change while it is asked: no text ever sees two sets of them, and old ones do not stay."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.node.base.home import Home
from shoal.node.handout import NewestState
from shoal.node.inference.engine.batch import Batch
from shoal.node.inference.engine.sequence import Sampling
from shoal.node.inference.library import LibraryScorer
from shoal.node.inference.live import MOST, Follower, LiveScorer, Version
from shoal.node.inference.local import LlamaScorer
from shoal.node.inference.models import renewed, scorer_of
from shoal.node.inference.scorer import Piece, Scorer
from shoal.node.inference.served import ServeOptions
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import HfSpec
from shoal.node.training.data.vocabulary import ByteVocabulary
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.layout import Layout
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import Digest, digest
from tests.hf_kit import TABLE, needs
from tests.run_kit import first_weights
from tests.unit.serve.kit import SPEC, Collecting, Script, counting, hand_out, job, run, saying, tiny

SLOTS = 8
CHOICES = ServeOptions(slots=SLOTS)
SIZE = Layout.of(tiny()).size


def weights(round: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(round)) * 0.3


def fresh(round: int, before: Scorer | None = None) -> Version:
    """The version of a round, with a cache of its own, or with that of the version before."""
    parameters, name = weights(round), f"v{round}"
    if before is None:
        return Version(scorer_of(SPEC, parameters, CHOICES, name), round, digest(name))
    return Version(renewed(before, SPEC, parameters, CHOICES, name), round, digest(name))


def scripted(round: int, rule: Callable[[list[int]], int] = counting) -> Version:
    script = Script(rule, slots=SLOTS)
    script.version = f"v{round}"
    return Version(script, round, digest(f"v{round}"))


def alone(round: int, text: str, sampling: Sampling) -> str:
    """The text that these weights write when they serve alone."""
    batch, reader = Batch(fresh(round).scorer, ByteVocabulary()), Collecting()
    batch.join(job(text, 60, sampling, ignore_end=True), reader)
    run(batch)
    return reader.text


def test_texts_begun_before_and_after_a_swap_are_to_the_byte_what_their_weights_give() -> None:
    """Side by side in one batch, over three versions, in slots that others have used, with long and short prompts."""
    live = LiveScorer(fresh(1))
    batch = Batch(live, ByteVocabulary(), chunk=16)
    begun: list[tuple[int, str, Sampling, Collecting]] = []
    at_work: set[int] = set()
    for step in range(120):
        if step % 6 == 0 and batch.free:
            text = f"{step} " * (1 + step % 7)
            sampling = Sampling(temperature=0.0 if step % 12 else 1.0, seed=step)
            begun.append((live.newest.round, text, sampling, Collecting()))
            batch.join(job(text, 60, sampling, ignore_end=True), begun[-1][3])
        hand_out(batch.step())
        at_work.add(live.versions)
        if step in (20, 41):
            live.take(fresh(live.newest.round + 1, live.newest.scorer))
    assert max(at_work) == 3, "the versions were not at work side by side"
    run(batch)
    assert {round for round, *_ in begun} == {1, 2, 3}
    for round, text, sampling, reader in begun:
        assert reader.error is None
        assert reader.text == alone(round, text, sampling), f"a text of round {round} saw other weights"
        assert {delta.version for delta in reader.deltas} == {f"v{round}"}
        assert reader.deltas[-1].notes == {"round": round, "root": digest(f"v{round}").hex()}
    assert live.versions == 1
    assert alone(1, "ab", Sampling(0.0)) != alone(2, "ab", Sampling(0.0)), "these weights cannot be told apart"


def test_a_text_that_waits_for_its_first_scores_is_told_of_the_weights_that_it_gets() -> None:
    live = LiveScorer(scripted(1))
    batch, reader = Batch(live, ByteVocabulary()), Collecting()
    batch.join(job(most=3), reader)
    live.take(scripted(2))
    hand_out(batch.step())
    assert reader.deltas[0].version == "v2"


def test_only_so_many_versions_are_here_at_once() -> None:
    live = LiveScorer(scripted(1))
    for slot in range(MOST):
        assert live.has_room
        live.extend([Piece(slot, (97,))])
        live.take(scripted(slot + 2)) if slot < MOST - 1 else None
    assert live.versions == MOST
    assert not live.has_room, "another would be one too many"
    live.extend([Piece(MOST, (97,))])
    live.end(MOST - 1)
    assert not live.has_room, "a text of the newest goes on"
    live.end(0)
    assert live.has_room


def test_what_nobody_writes_with_is_let_go_of() -> None:
    live = LiveScorer(fresh(1))
    old = weakref.ref(live.newest.scorer)
    live.extend([Piece(0, (97, 98))])
    live.take(fresh(2, live.newest.scorer))
    gc.collect()
    assert old() is not None, "a text is written with it"
    live.end(0)
    gc.collect()
    assert old() is None


def test_many_swaps_leave_nothing_behind() -> None:
    """With a text across each of them."""
    live = LiveScorer(fresh(0))
    seen: list[weakref.ref[Scorer]] = []
    live.extend([Piece(0, (97,) * 50)])
    for round in range(1, 201):
        live.take(fresh(round, live.newest.scorer))
        seen.append(weakref.ref(live.newest.scorer))
        slot = round % 2
        live.end(slot)
        live.extend([Piece(slot, (97,) * 50)])
    gc.collect()
    assert sum(each() is not None for each in seen) == live.versions <= 2
    scorer = live.newest.scorer
    assert isinstance(scorer, LlamaScorer)
    assert scorer._cache.room == 64, "the cache is that of the first version"


def test_a_version_that_fails_loses_its_own_texts_only() -> None:
    live = LiveScorer(scripted(1))
    live.extend([Piece(0, (97,))])
    live.take(scripted(2))
    live.extend([Piece(1, (97,))])
    broken = live.newest.scorer
    assert isinstance(broken, Script)
    broken.failure = LocalError("out of memory")
    answer = live.extend([Piece(0, (98,)), Piece(1, (98,))])
    assert list(answer.failed) == [1]
    assert int(np.argmax(answer.rows[0])) == 99


class Source:
    """A node, as a follower sees it."""

    def __init__(self) -> None:
        self.round = 1
        self.error: Exception | None = None
        self.given: list[int] = []
        self.asked = threading.Event()

    def ask(self, known: Digest, wants: bool) -> NewestState:
        self.asked.set()
        if self.error is not None:
            raise self.error
        root = digest(f"v{self.round}")
        if root == known or not wants:
            return NewestState(self.round, root, 0)
        self.given.append(self.round)
        return NewestState(self.round, root, 0, b"", np.zeros(1, np.float32))


def following(load: Callable[[NewestState], Version] | None = None) -> tuple[Source, LiveScorer, Follower]:
    source, live = Source(), LiveScorer(scripted(1))
    return source, live, Follower("tiny", live, source.ask, load or (lambda found: scripted(found.round)))


def test_the_newest_wins_and_those_between_are_skipped() -> None:
    source, live, follower = following()
    follower.poll()
    assert source.given == []
    source.round = 5
    follower.poll()
    assert (source.given, live.newest.round, live.version) == ([5], 5, "v5")


def test_without_room_nothing_is_loaded_until_a_text_ends() -> None:
    source, live, follower = following()
    for slot in range(MOST + 3):
        live.extend([Piece(slot, (97,))])
        source.round += 1
        follower.poll()
    assert source.given == list(range(2, MOST + 1))
    assert live.about()["node_round"] == source.round
    assert live.about()["round"] == MOST
    live.end(0)
    follower.poll()
    assert live.newest.round == source.round


def test_a_node_that_is_gone_is_named_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    source, live, follower = following()
    source.error = TransportError("nobody answers")
    for _ in range(3):
        follower.poll()
    assert {key: live.about()[key] for key in ("follows", "trouble", "round")} == {
        "follows": False,
        "trouble": "nobody answers",
        "round": 1,
    }
    source.error, source.round = None, 9
    follower.poll()
    assert live.about()["follows"]
    assert "trouble" not in live.about()
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["tiny stays at round 1: nobody answers", "tiny follows its run again, at round 9"]


def test_what_cannot_be_loaded_leaves_all_as_it_was() -> None:
    def load(found: NewestState) -> Version:
        raise MemoryError("no room")

    source, live, follower = following(load)
    source.round = 2
    follower.poll()
    assert live.newest.round == 1
    assert "MemoryError" in live.about()["trouble"]


def test_it_follows_until_it_is_told_to_end() -> None:
    source, _, follower = following()
    over = threading.Event()
    thread = threading.Thread(target=follower.follow, args=(over,))
    thread.start()
    assert source.asked.wait(30)
    over.set()
    thread.join(30)
    assert not thread.is_alive()


def test_a_text_is_whole_when_its_weights_change_at_every_step() -> None:
    live = LiveScorer(scripted(1, saying("one", 2)))
    batch, readers = Batch(live, ByteVocabulary()), [Collecting() for _ in range(3)]
    words = ("one", "two", "three")
    for number, reader in enumerate(readers):
        live.take(scripted(number + 1, saying(words[number], 2)))
        batch.join(job(most=20), reader)
        hand_out(batch.step())
    run(batch)
    found: list[Any] = [(reader.text, reader.finish) for reader in readers]
    assert found == [(word, "stop") for word in words]


def test_who_never_reads_keeps_one_version_until_it_is_cut_off() -> None:
    """And others get each newer one meanwhile."""
    live = LiveScorer(fresh(1))
    batch, stalled = Batch(live, ByteVocabulary()), Collecting(has_room=True)
    batch.join(job(most=100, ignore_end=True), stalled)
    hand_out(batch.step())
    stalled.has_room = False
    old = weakref.ref(live.newest.scorer)
    for round in range(2, 30):
        live.take(fresh(round, live.newest.scorer))
        reader = Collecting()
        batch.join(job(most=3, ignore_end=True), reader)
        run(batch)
        assert [delta.version for delta in reader.deltas] == [f"v{round}"] * 3
        assert live.versions == 2
        assert live.has_room
    assert old() is not None
    stalled.is_gone = True
    run(batch)
    gc.collect()
    assert (batch.busy, live.versions, old()) == (0, 1, None)


def test_a_librarys_model_is_renewed_as_well(tmp_path: Path) -> None:
    """Without being tried anew; and neither version sees what the other holds."""
    needs("transformers")
    manifest = Manifest(name="hf-run", model=HfSpec(name="hf", config=json.dumps(TABLE), context=16))
    manifest, checkpoint = first_weights(manifest, (), Home(tmp_path).create())
    first = checkpoint.vectors[PARAMETERS]
    second = first + 0.1 * torch.randn(first.shape, generator=torch.Generator().manual_seed(1))
    old = scorer_of(manifest.model, first, CHOICES, "v1")
    live = LiveScorer(Version(old, 1, digest("v1")))
    live.extend([Piece(0, (5, 6))])
    live.take(Version(renewed(old, manifest.model, second, CHOICES, "v2"), 2, digest("v2")))
    live.extend([Piece(1, (5, 6))])
    rows = live.extend([Piece(0, (7,)), Piece(1, (7,))]).rows
    assert isinstance(old, LibraryScorer)
    assert isinstance(live.newest.scorer, LibraryScorer)
    assert live.newest.scorer.is_batched == old.is_batched
    for row, parameters in zip(rows, (first, second), strict=True):
        expected = scorer_of(manifest.model, parameters, CHOICES, "").extend([Piece(0, (5, 6, 7))]).rows[0]
        np.testing.assert_allclose(row, expected, atol=1e-4)
    assert abs(rows[0] - rows[1]).max() > 1e-2
