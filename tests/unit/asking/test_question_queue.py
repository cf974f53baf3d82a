"""The order in which questions are answered."""

from __future__ import annotations

import pytest

from shoal.node.experts.questions import ENDED, STEP, TEXTS, check_size
from shoal.node.inference.remote.answering.sharing import WAITING, Question, QuestionQueue
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.experts import Addition, AskExpert
from tests.unit.asking.kit import ANNA, BOB, CARL, FILE


def asks(peer: PeerId, tokens: int, texts: int = 1) -> Question:
    additions = tuple(Addition(text, 0, (1,) * tokens, True) for text in range(texts))
    return Question(peer, AskExpert(FILE, 1, (), additions))


def test_those_who_ask_little_are_answered_together() -> None:
    turns = QuestionQueue()
    questions = [asks(peer, 10) for peer in (ANNA, BOB, CARL, ANNA)]
    assert all(turns.add(each) for each in questions)
    assert turns.take() == questions
    assert (len(turns), turns.take()) == (0, [])


def test_who_asks_much_delays_others_by_one_step() -> None:
    turns = QuestionQueue()
    long = [asks(ANNA, STEP - 10) for _ in range(5)]
    for each in long:
        turns.add(each)
    assert turns.take() == long[:1]
    short = asks(BOB, 10)
    turns.add(short)
    assert turns.take() == [long[1], short]
    assert [turns.take() for _ in range(4)] == [[each] for each in long[2:]] + [[]]


def test_so_many_may_wait_of_each_peer() -> None:
    turns = QuestionQueue()
    assert [turns.add(asks(ANNA, 1)) for _ in range(WAITING + 1)] == [True] * WAITING + [False]
    assert turns.add(asks(BOB, 1))


def test_one_question_has_a_size() -> None:
    check_size(ANNA, asks(ANNA, STEP).asked)
    check_size(ANNA, asks(ANNA, 1, TEXTS).asked)
    too_many_ends = AskExpert(FILE, 1, tuple(range(ENDED + 1)), ())
    for asked in (asks(ANNA, STEP + 1).asked, asks(ANNA, 1, TEXTS + 1).asked, too_many_ends):
        with pytest.raises(RemoteError) as caught:
            check_size(ANNA, asked)
        assert caught.value.peer == ANNA
