"""Who gets a seat where more members stand ready than a roster may have."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from shoal.protocol.averaging.context import Context
from shoal.protocol.averaging.events import Want
from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.steering import Steering
from shoal.protocol.base.effects import Tell
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log.register import MAX_SEATS, first_state, founded
from shoal.protocol.messages.log import Member, Register, Roster, Seat
from tests.unit.rounds_kit import BASE, BRANCH, CHUNKS, POLICY

NAMES = [PeerId(f"peer {number:04}") for number in range(MAX_SEATS + 100)]


def steering(seated: list[PeerId]) -> Steering:
    """That of the first of more members than fit, all of whom live."""
    members = tuple(Member(name, 1, 0) for name in NAMES)
    part = replace(first_state(0, BASE.round), roster=tuple(Seat(name, 1) for name in seated))
    register: Register = replace(founded(BRANCH, NAMES[0], 1), members=members, parts=(part,))
    context: dict[str, Any] = {
        "us": SimpleNamespace(me=NAMES[0], part=0),
        "log": SimpleNamespace(register=register),
        "policy": POLICY,
        "view": SimpleNamespace(is_alive=lambda peer: True),
        "is_far": lambda peer, base: False,
        "followers": SimpleNamespace(is_due=lambda peer, round: True),
        "doubts": SimpleNamespace(leaves_out=lambda peer, round: False),
    }
    exchange = SimpleNamespace(lost=(), is_under_way=False, is_complete=False, chunks=CHUNKS)
    return Steering(cast(Context, SimpleNamespace(**context)), BASE, cast(Exchange, exchange), {}, 0.0)


def wanted(effects: list[Any]) -> Roster:
    (effect,) = effects
    assert isinstance(effect, Tell)
    assert isinstance(effect.event, Want)
    assert isinstance(effect.event.body, Roster)
    return effect.event.body


def test_a_round_begins_with_as_many_as_fit() -> None:
    assert len(wanted(steering([])._want_seats(NAMES)).seats) == MAX_SEATS
    assert len(steering([])._next_seats()) == MAX_SEATS


def test_while_a_round_waits_others_are_added_as_long_as_there_is_room() -> None:
    seats = wanted(steering(NAMES[: MAX_SEATS - 1])._want_seats(NAMES)).seats
    assert len(seats) == MAX_SEATS
    assert steering(NAMES[:MAX_SEATS])._seat_more() == []
