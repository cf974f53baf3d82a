"""The scorer over experts: what it gives, whom it asks, and what it does without those that fail."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from shoal.node.experts.evaluation import ensemble_loss, scores
from shoal.node.experts.posterior import uniform
from shoal.node.inference.engine.batch import Batch
from shoal.node.inference.ensemble.ensemble import Ensemble
from shoal.node.inference.scorer import Expert, Piece, Scorer, SomeFailed, Weighed
from shoal.node.training.data.vocabulary import ByteVocabulary
from shoal.node.training.models.decoder import build
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError
from tests.unit.serve.ensemble.kit import OTHER, SMALL, Unigram, ensemble, panel, tiny_expert
from tests.unit.serve.kit import Collecting, job, run

TOKENS = [int(each) for each in torch.randint(1, 256, (48,), generator=torch.Generator().manual_seed(2))]


def rows_of(scorer: Scorer, tokens: Sequence[int] = TOKENS, prompt: int = 20, chunk: int = 7) -> np.ndarray:
    """Scores after each token from the prompt's last on."""
    for start in range(0, prompt, chunk):
        stop = min(prompt, start + chunk)
        rows = scorer.extend([Piece(1, tuple(tokens[start:stop]), more=stop < prompt)])
    found = [rows[0], *(scorer.extend([Piece(1, (token,))])[0] for token in tokens[prompt:])]
    scorer.end(1)
    return np.stack(found)


def write(scorer: Ensemble, *texts: str, most: int = 6) -> list[Collecting]:
    batch, readers = Batch(scorer, ByteVocabulary()), [Collecting() for _ in texts]
    for text, reader in zip(texts, readers, strict=True):
        batch.join(job(text, most), reader)
    run(batch)
    return readers


@pytest.mark.parametrize("k", [None, 1, 2])
def test_an_ensemble_of_one_is_that_one(k: int | None) -> None:
    np.testing.assert_allclose(rows_of(ensemble({"a": tiny_expert(1)}, k=k)), rows_of(tiny_expert(1)), atol=1e-5)


@pytest.mark.parametrize("k", [None, 1, 2])
def test_one_of_equals_is_any_of_them(k: int | None) -> None:
    same = ensemble({name: tiny_expert(1) for name in "abc"}, k=k)
    np.testing.assert_allclose(rows_of(same), rows_of(tiny_expert(1)), atol=1e-4)


def test_a_certain_prior_is_that_expert() -> None:
    experts = {"a": tiny_expert(1), "b": tiny_expert(2), "c": tiny_expert(3)}
    np.testing.assert_allclose(rows_of(ensemble(experts, prior=(0, 1, 0))), rows_of(tiny_expert(2)), atol=1e-5)


@pytest.mark.parametrize("at_once", [1, 2])
def test_of_different_sizes_the_loss_is_that_of_the_evaluation(at_once: int) -> None:
    experts = {"a": tiny_expert(1), "b": tiny_expert(2, OTHER), "c": tiny_expert(3)}
    scorer = ensemble(experts, at_once=at_once)
    assert scorer.limit == OTHER.context
    found = rows_of(scorer, prompt=1)[:-1]
    mean = -float(np.mean(found[np.arange(len(found)), TOKENS[1:]]))
    models = [build(SMALL, 1), build(OTHER, 2), build(SMALL, 3)]
    wanted = ensemble_loss(scores(models, torch.tensor(TOKENS), len(TOKENS)), uniform(3))
    assert mean == pytest.approx(wanted, abs=1e-5)


def test_how_a_prompt_is_cut_changes_nothing() -> None:
    experts = {"a": tiny_expert(1), "b": tiny_expert(2)}
    whole, *others = (rows_of(ensemble(experts, k=1), chunk=chunk) for chunk in (20, 1, 7))
    for other in others:
        np.testing.assert_allclose(other, whole, atol=1e-4)


def test_after_the_prompt_only_the_k_are_called() -> None:
    experts = {"a": Unigram(a=0.9, b=0.1), "b": Unigram(a=0.1, b=0.9), "c": Unigram(a=0.5, b=0.5)}
    readers = write(ensemble(experts, k=1), "aaaa", "bbbb")
    assert [each.text for each in readers] == ["aaaaaa", "bbbbbb"]
    written = {name: sum(len(piece.tokens) for call in each.calls for piece in call) for name, each in experts.items()}
    assert written == {"a": 8 + 5, "b": 8 + 5, "c": 8}
    assert not any(each.held for each in experts.values()), "all slots are empty again"


def test_a_posterior_tells_texts_apart_in_one_batch() -> None:
    experts = {"a": Unigram(a=0.9, b=0.1), "b": Unigram(a=0.1, b=0.9)}
    readers = write(ensemble(experts), "aab", "abbbb")
    shares = [reader.deltas[-1].notes["experts"] for reader in readers]
    assert shares[0]["a"] == pytest.approx(1 / (1 + 9**-5), abs=1e-6), "of 7 tokens that tell something 6 are its own"
    assert shares[1]["b"] == pytest.approx(1 / (1 + 9**-9), abs=1e-6)


# -- loss ---------------------------------------------------------------------------------------------------


def failing_at(call: int, expert: Unigram, error: Exception) -> Unigram:
    expert.fails = lambda: error if len(expert.calls) == call else None
    return expert


def test_a_text_goes_on_without_the_expert_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    gone = failing_at(4, Unigram(a=0.9, b=0.1), TransportError("its peer is gone"))
    scorer = ensemble({"a": gone, "b": Unigram(b=0.8, c=0.2)})
    (reader,) = write(scorer, "aaa")
    assert reader.text == "aaabbb"
    assert reader.deltas[-1].notes == {"experts": {"b": 1.0}, "lost": ["a"]}
    assert len(gone.calls) == 4, "it is not asked about this text again"
    assert not gone.held
    assert caplog.messages == ["the expert a is lost to one text: its peer is gone"]


def test_who_has_failed_is_asked_by_the_next_text() -> None:
    gone = failing_at(2, Unigram(a=0.9, b=0.1), LocalError("out of memory"))
    scorer = ensemble({"a": gone, "b": Unigram(b=0.8, c=0.2)})
    write(scorer, "aaa")
    row = {"name": "a", "prior": 0.5, "answers": False, "trouble": "the expert a: out of memory"}
    assert scorer.about()["experts"][0] == row
    (reader,) = write(scorer, "aaa")
    assert (reader.text, reader.deltas[-1].notes["lost"]) == ("aaaaaa", [])
    assert all(each["answers"] for each in scorer.about()["experts"])


def test_a_place_among_the_k_is_taken_by_the_next() -> None:
    gone = failing_at(4, Unigram(a=0.9, b=0.1), RuntimeError("a bug"))
    heir = Unigram(a=0.7, b=0.3)
    (reader,) = write(ensemble({"a": gone, "b": Unigram(b=0.9, a=0.1), "c": heir}, k=1), "aaa")
    assert reader.text == "aaaaaa"
    assert reader.deltas[-1].notes == {"experts": {"c": 1.0}, "lost": ["a"]}
    assert [piece.tokens for call in heir.calls for piece in call][:2] == [(97,) * 3, (97,) * 3], "it has read them all"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TransportError("gone"), TransportError),
        (RemoteError("lies"), RemoteError),
        (LocalError("broken"), LocalError),
        (MemoryError("full"), LocalError),
    ],
)
def test_when_none_is_left_a_text_ends_with_what_the_last_has_said(error: Exception, kind: type[ShoalError]) -> None:
    experts = {name: failing_at(3, Unigram(a=0.9, b=0.1), error) for name in "ab"}
    readers = write(ensemble(experts), "aaa", "aa")
    for reader in readers:
        assert isinstance(reader.error, kind)
        assert "no expert is left" in str(reader.error)
    assert not any(each.held for each in experts.values())


class Diverged(Unigram):
    """Gives no numbers for one slot."""

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        answer = super().weigh(pieces)
        for row, piece in zip(answer.rows, pieces, strict=True):
            if piece.slot == 1:
                row[3] = np.nan
        return answer


def test_numbers_that_are_none_cost_only_the_texts_that_they_are_about() -> None:
    both = write(ensemble({"a": Diverged(a=0.9, b=0.1), "b": Unigram(b=0.8, a=0.2)}), "aaaaa", "aaaaa")
    assert [reader.deltas[-1].notes["lost"] for reader in both] == [[], ["a"]]
    assert [reader.text for reader in both] == ["aaaaaa", "bbbbbb"]
    alone = ensemble({"a": Diverged(a=0.9, b=0.1)})
    with pytest.raises(SomeFailed) as some:
        alone.extend([Piece(0, (97,)), Piece(1, (97,))])
    assert set(some.value.failed) == {1}
    assert some.value.rows[0].argmax() == 97


# -- who is there -------------------------------------------------------------------------------------------


def test_texts_keep_the_experts_that_they_began_with() -> None:
    old, new = Unigram(a=0.9, b=0.1), Unigram(c=0.9, b=0.1)
    scorer = ensemble({"old": old})
    batch, before, after = Batch(scorer, ByteVocabulary()), Collecting(), Collecting()
    batch.join(job("a", 6), before)
    for _ in range(3):
        for told in batch.step():
            before.deltas.append(told.what)  # type: ignore[arg-type]
    version = scorer.version
    scorer.take(panel({"new": new}))
    assert scorer.version != version
    batch.join(job("a", 6), after)
    run(batch)
    assert (before.text, after.text) == ("aaaaaa", "cccccc")
    assert after.deltas[-1].notes["experts"] == {"new": 1.0}
    assert not old.held
    assert not new.held


class Meeting(Unigram):
    """Answers only while another is asked as well."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__(a=0.5, b=0.5)
        self._barrier = barrier

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        self._barrier.wait(30)
        return super().weigh(pieces)


def test_experts_are_asked_side_by_side() -> None:
    barrier = threading.Barrier(3)
    experts: Mapping[str, Expert] = {name: Meeting(barrier) for name in "abc"}
    (reader,) = write(ensemble(experts, at_once=3), "ab", most=3)
    assert reader.text == "aaa"
