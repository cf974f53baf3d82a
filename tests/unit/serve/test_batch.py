"""Turns in a batch: every writer in each step, prompts by chunks in turn, and no request pays for another's trouble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from shoal.node.inference.engine.batch import Batch
from shoal.node.inference.engine.sequence import Sampling
from shoal.node.inference.scorer import Piece, Predictions
from shoal.node.training.data.vocabulary import ByteVocabulary
from shoal.protocol.base.errors import LocalError, TransportError
from tests.unit.serve.kit import Collecting, Script, counting, hand_out, job, run, saying


def batch_of(scorer: Script, chunk: int = 16) -> Batch:
    return Batch(scorer, ByteVocabulary(), chunk)


def test_a_text_has_as_many_tokens_as_were_asked_for() -> None:
    batch, reader = batch_of(Script(counting)), Collecting()
    batch.join(job("xa", 5), reader)
    run(batch)
    assert (reader.text, reader.finish, reader.deltas[-1].tokens) == ("bcdef", "length", 5)
    assert batch.free == 4


def test_the_token_that_ends_a_text_ends_it_unless_it_is_ignored() -> None:
    reader, other = Collecting(), Collecting()
    batch = batch_of(Script(saying("one", 2)))
    batch.join(job("ab", 9), reader)
    batch.join(job("ab", 6, ignore_end=True), other)
    run(batch)
    assert (reader.text, reader.finish, reader.deltas[-1].tokens) == ("one", "stop", 3)
    assert (other.text, other.finish, other.deltas[-1].tokens) == ("one", "length", 6)


def test_a_stop_over_several_tokens_ends_it_and_no_part_of_it_goes_out() -> None:
    reader, other = Collecting(), Collecting()
    batch = batch_of(Script(saying("one END two", 2)))
    batch.join(job("ab", 50, stops=("END",)), reader)
    batch.join(job("ab", 50, stops=("two three",)), other)
    run(batch)
    assert (reader.text, reader.finish) == ("one ", "stop")
    assert [each.text for each in reader.deltas[-3:]] == ["", "", ""]
    assert (other.text, other.finish) == ("one END two", "stop")


def test_a_long_prompt_stalls_nobody_and_short_ones_do_not_wait_for_it() -> None:
    scorer = Script(counting)
    batch, writing, long, short = batch_of(scorer, chunk=16), Collecting(), Collecting(), Collecting()
    batch.join(job("a", 1000), writing)
    hand_out(batch.step())
    batch.join(job("x" * 160, 4), long)
    batch.join(job("y" * 8, 4), short)
    steps = 0
    while not short.deltas:
        before = len(writing.deltas)
        hand_out(batch.step())
        steps += 1
        assert len(writing.deltas) == before + 1
    assert steps <= 2
    while not long.deltas:
        before = len(writing.deltas)
        hand_out(batch.step())
        steps += 1
        assert len(writing.deltas) == before + 1
    assert 10 <= steps <= 12
    assert all(sum(len(piece.tokens) for piece in call if len(piece.tokens) > 1) <= 16 for call in scorer.calls)


def test_several_long_prompts_take_turns() -> None:
    scorer = Script(counting)
    batch, readers = batch_of(scorer), [Collecting() for _ in range(3)]
    for reader in readers:
        batch.join(job("x" * 64, 1), reader)
    for _ in range(3):
        batch.step()
    assert {slot: len(tokens) for slot, tokens in scorer.held.items()} == {0: 16, 1: 16, 2: 16}


def test_who_is_gone_is_out_before_the_next_step() -> None:
    scorer = Script(counting)
    batch, gone, reading, stays = batch_of(scorer), Collecting(), Collecting(), Collecting()
    batch.join(job("a", 100), gone)
    batch.join(job("x" * 100, 100), reading)
    batch.join(job("a", 3), stays)
    hand_out(batch.step())
    gone.is_gone = reading.is_gone = True
    hand_out(batch.step())
    assert (batch.busy, batch.free, set(scorer.held)) == (1, 3, {2})
    batch.join(job("xa", 2), again := Collecting())
    run(batch)
    assert (again.text, stays.text) == ("bc", "bcd")


def test_who_has_no_room_is_passed_over_and_goes_on_where_it_was() -> None:
    batch, full, other = batch_of(Script(counting)), Collecting(), Collecting()
    batch.join(job("a", 6), full)
    batch.join(job("a", 8), other)
    hand_out(batch.step())
    full.has_room = False
    run(batch)
    assert (full.text, other.text, batch.busy, batch.has_work) == ("b", "bcdefghi", 1, False)
    assert batch.step() == []
    full.has_room = True
    run(batch)
    assert (full.text, batch.busy) == ("bcdefg", 0)


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [(TransportError("no answer"), TransportError, "no answer"), (MemoryError(), LocalError, "MemoryError")],
)
def test_a_call_that_fails_ends_those_in_it_and_no_others(failure: Exception, kind: type, words: str) -> None:
    scorer = Script(counting)
    batch, paused, broken = batch_of(scorer), Collecting(), Collecting()
    batch.join(job("a", 5), paused)
    batch.join(job("a", 5), broken)
    hand_out(batch.step())
    paused.has_room, scorer.failure = False, failure
    hand_out(batch.step())
    assert isinstance(broken.error, kind)
    assert words in str(broken.error)
    assert (batch.busy, set(scorer.held)) == (1, {0})
    paused.has_room = True
    run(batch)
    assert (paused.text, paused.error) == ("bcdef", None)


class Diverging(Script):
    """Texts that begin with an x get no probabilities."""

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        answer = super().extend(pieces)
        for row, piece in zip(answer.rows, pieces, strict=True):
            if self.held[piece.slot][0] == ord("x"):
                row[:] = np.nan
        return answer


def test_a_model_that_has_diverged_fails_its_request_and_not_the_server() -> None:
    scorer = Diverging(counting)
    batch, reader, other = batch_of(scorer), Collecting(), Collecting()
    batch.join(job("x", 5), reader)
    batch.join(job("a", 5), other)
    run(batch)
    assert other.text == "bcdef"
    assert "diverged" in str(reader.error)
    assert scorer.held == {}


def test_a_token_that_stands_for_nothing_is_never_drawn() -> None:
    scorer = Script(lambda held: 300 if len(held) < 4 else 98)
    scorer.vocab = 301
    batch, reader = batch_of(scorer), Collecting()
    batch.join(job("a", 5, ignore_end=True), reader)
    run(batch)
    assert reader.text == "bb"


def test_the_same_seed_writes_the_same_whatever_the_others() -> None:
    def written(others: int) -> str:
        batch, mine = batch_of(Script(counting)), Collecting()
        for number in range(others):
            batch.join(job("a", 30, Sampling(2.0, 1.0, number)), Collecting())
        batch.join(job("a", 30, Sampling(2.0, 1.0, 99), ignore_end=True), mine)
        run(batch)
        return mine.text

    assert written(0) == written(3)


def test_facts_are_of_the_tokens_whose_text_has_gone_out() -> None:
    batch, reader = batch_of(Script(saying("żEND", 2))), Collecting()
    batch.join(job("ab", 20, stops=("END",), alternatives=2), reader)
    run(batch)
    facts = [fact for delta in reader.deltas for fact in delta.logprobs]
    assert [(fact.text, fact.start) for fact in facts] == [("\\xc5", 0), ("\\xbc", 0)]
    assert facts[0].logprob == 0.0
    assert [len(fact.top) for fact in facts] == [2, 2]
    assert facts[0].top[0] == ("\\xc5", 0.0)


def test_a_prompt_in_parts_says_which_is_the_last() -> None:
    scorer = Script(counting)
    batch = batch_of(scorer, chunk=16)
    batch.join(job("x" * 40, 3), Collecting())
    run(batch)
    pieces = [piece for call in scorer.calls for piece in call]
    assert [(len(each.tokens), each.more) for each in pieces] == [
        (16, True),
        (16, True),
        (8, False),
        (1, False),
        (1, False),
    ]


class Picky(Script):
    """Cannot go on with one slot, and tells how many tokens each holds."""

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        answer = super().extend(pieces)
        if any(len(self.held[piece.slot]) == 6 and piece.slot == 1 for piece in pieces):
            return replace(answer, failed={1: TransportError("gone")})
        return answer

    def notes(self, slot: int) -> dict[str, object]:
        return {"held": len(self.held[slot])}


def test_a_call_that_fails_for_some_ends_only_them() -> None:
    scorer = Picky(counting)
    batch, reader, lost = batch_of(scorer), Collecting(), Collecting()
    batch.join(job("a", 9), reader)
    batch.join(job("a", 9), lost)
    run(batch)
    assert (reader.text, reader.error) == ("bcdefghij", None)
    assert lost.text == "bcdef"
    assert isinstance(lost.error, TransportError)
    assert (batch.free, scorer.held) == (4, {})


def test_what_a_scorer_tells_goes_out_with_the_last_delta() -> None:
    batch, reader = batch_of(Picky(counting)), Collecting()
    batch.join(job("a", 4), reader)
    run(batch)
    assert [each.notes for each in reader.deltas] == [{}, {}, {}, {"held": 4}]
