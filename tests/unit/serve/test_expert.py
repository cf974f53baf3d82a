"""An expert scores the tokens that it reads as it had predicted them, however they are cut into pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from shoal.node.inference.local import PlainScorer
from shoal.node.inference.scorer import Piece, Predictions, Scorer
from tests.unit.serve.kit import llama_scorer, tiny
from tests.unit.serve.test_local import TOKENS


def plain() -> PlainScorer:
    return PlainScorer(tiny(), torch.device("cpu"), vocab=256, limit=200, slots=4, version="v1")


class Stepwise(Scorer):
    """The dumb expert: any scorer, which is given a piece's tokens one by one."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.vocab, self.limit, self.slots, self.version = scorer.vocab, scorer.limit, scorer.slots, scorer.version

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._scorer.end(slot)

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """See Scorer."""
        rows = np.empty((len(pieces), self.vocab), np.float32)
        worth = np.zeros(len(pieces))
        for place in range(max(len(piece.tokens) for piece in pieces)):
            still = [number for number, piece in enumerate(pieces) if place < len(piece.tokens)]
            if place:
                worth[still] += [rows[number, pieces[number].tokens[place]] for number in still]
            ones = [Piece(pieces[number].slot, (pieces[number].tokens[place],)) for number in still]
            rows[still] = self._scorer.extend(ones).rows
        return Predictions(rows, worth)


def stepwise() -> Stepwise:
    return Stepwise(llama_scorer())


MAKERS = pytest.mark.parametrize("make", [llama_scorer, plain, stepwise])


def foreseen(tokens: list[int]) -> np.ndarray:
    """log p of each token but the first, by the model itself."""
    with torch.inference_mode():
        rows = torch.log_softmax(tiny()(torch.tensor([tokens[:-1]]))[0].double(), -1)
    return rows.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].numpy()


@MAKERS
def test_a_piece_is_worth_what_was_foreseen_of_it(make: Callable[[], Scorer]) -> None:
    expert, wanted = make(), foreseen(TOKENS[:60])
    total, row = 0.0, None
    for start, stop in ((0, 20), (20, 21), (21, 50), (50, 60)):
        answer = expert.extend([Piece(2, tuple(TOKENS[start:stop]))], within=True)
        np.testing.assert_allclose(answer.within[0], wanted[start : stop - 1].sum(), atol=1e-3)
        total += float(answer.within[0]) + (0.0 if row is None else float(row[TOKENS[start]]))
        row = answer.rows[0]
    np.testing.assert_allclose(total, wanted.sum(), atol=1e-3)


@MAKERS
def test_pieces_of_one_call_are_told_apart_and_rows_are_those_of_a_scorer(make: Callable[[], Scorer]) -> None:
    expert, scorer = make(), llama_scorer()
    pieces = [Piece(3, (7,)), Piece(1, tuple(TOKENS[:9])), Piece(0, tuple(TOKENS[30:35])), Piece(2, (1,))]
    answer = expert.extend(pieces, within=True)
    np.testing.assert_allclose(answer.rows, scorer.extend(pieces).rows, atol=1e-4)
    wanted = [0, foreseen(TOKENS[:9]).sum(), foreseen(TOKENS[30:35]).sum(), 0]
    np.testing.assert_allclose(answer.within, wanted, atol=1e-3)


@MAKERS
def test_a_slot_that_has_ended_begins_anew(make: Callable[[], Scorer]) -> None:
    expert = make()
    first = expert.extend([Piece(0, tuple(TOKENS[:9]))], within=True)
    expert.end(0)
    again = expert.extend([Piece(0, tuple(TOKENS[:9]))], within=True)
    np.testing.assert_allclose(again.within, first.within, atol=1e-4)
