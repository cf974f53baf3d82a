"""A login code works once, and only for a short time."""

from __future__ import annotations

from shoal.node.daemon.web.session import CODE_LIFETIME, MOST_CODES, LoginCodes


def test_a_code_is_good_once() -> None:
    codes = LoginCodes()
    first, second = codes.make(0.0), codes.make(1.0)
    assert first != second
    assert not codes.use(2.0, first[:-1])
    assert codes.use(2.0, first)
    assert not codes.use(2.0, first)
    assert codes.use(2.0, second)


def test_a_code_expires_and_cannot_be_tried_again() -> None:
    codes = LoginCodes()
    code = codes.make(0.0)
    assert not codes.use(CODE_LIFETIME, code)
    assert not codes.use(0.0, code)
    assert codes.use(CODE_LIFETIME - 1, codes.make(0.0))


def test_codes_are_bounded_and_the_oldest_makes_room() -> None:
    codes = LoginCodes()
    made = [codes.make(0.0) for _ in range(MOST_CODES + 1)]
    assert [codes.use(1.0, code) for code in made] == [False] + [True] * MOST_CODES


def test_nothing_and_nonsense_are_no_codes() -> None:
    codes = LoginCodes()
    codes.make(0.0)
    assert not any(codes.use(1.0, shown) for shown in ("", "\ud800", "é" * 22))
