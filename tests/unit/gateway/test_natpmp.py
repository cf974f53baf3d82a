"""NAT-PMP on the wire, by the letter of RFC 6886."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.gateway.natpmp import Mapped, Where, ask_to_map, ask_where, has_begun_anew, mapped, where


def test_questions_are_those_of_the_rfc() -> None:
    assert ask_where() == bytes.fromhex("0000")
    assert ask_to_map(4101, 4103, 3600) == bytes.fromhex("00020000 1005 1007 00000e10")


def test_answers_of_a_real_router() -> None:
    assert where(bytes.fromhex("00800000 00000001 07070708")) == Where(0, 1, "7.7.7.8")
    assert mapped(bytes.fromhex("00820000 00000001 1005 1005 00000e10"), 4101) == Mapped(0, 1, 4101, 4101, 3600)


def test_refusals_are_answers_however_short() -> None:
    assert where(bytes.fromhex("00800003 00000001")) == Where(3, 1, "0.0.0.0")
    assert mapped(bytes.fromhex("00820002 00000007"), 4101) == Mapped(2, 7, 4101, 0, 0)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "00800000 00000001",  # consent without an address
        "02800000 00000001 07070708",  # PCP's version
        "00000000 00000001 07070708",  # a question
        "00820000 00000001 1005 1005 00000e10",  # to another question
        "00800000 00000001 07070708" + "00" * 60,  # too long
    ],
)
def test_what_is_no_answer_is_none(said: str) -> None:
    assert where(bytes.fromhex(said)) is None


def test_an_answer_about_another_port_is_none_of_ours() -> None:
    assert mapped(bytes.fromhex("00820000 00000001 1006 1006 00000e10"), 4101) is None


@given(st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_none(said: bytes) -> None:
    for answer in (where(said), mapped(said, 4101)):
        assert answer is None or 0 <= answer.code < 65_536


@pytest.mark.parametrize(
    ("before", "seconds", "epoch", "anew"),
    [
        (1000, 30.0, 1030, False),
        (1000, 30.0, 1025, False),  # a clock may be slow by an eighth, and two seconds
        (1000, 30.0, 1024, True),
        (1000, 30.0, 3, True),
        (0, 3600.0, 3600, False),
    ],
)
def test_a_count_that_is_behind_is_another_life(before: int, seconds: float, epoch: int, anew: bool) -> None:
    assert has_begun_anew(before, seconds, epoch) is anew
