"""Which of the streams that a peer opens are heard: two of a protocol while it moves, else the newest."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.protocol.net.transport.streams import IncomingStreams


class Heard:
    """A stream, and what is read of it."""

    def __init__(self, is_relayed: bool = False, has_ended: bool = False) -> None:
        self.is_relayed, self.has_ended, self.is_over = is_relayed, has_ended, False
        self.follows: Heard | None = None

    def follow(self, last: Heard) -> None:
        self.follows = last

    def close(self) -> None:
        self.is_over = True


@pytest.fixture
def lost() -> list[str]:
    return []


def hear(lost: list[str], *streams: Heard) -> IncomingStreams:
    def read(protocol: str, stream: Any) -> Any:
        return stream

    arrivals = IncomingStreams(read, lost.append)
    for stream in streams:
        accepted: Any = stream
        arrivals.accept("words", accepted)
    return arrivals


def test_a_new_stream_replaces_one_that_has_not_ended_as_the_peer_has_lost_that(lost: list[str]) -> None:
    old, new = Heard(), Heard()
    hear(lost, old, new)
    assert (old.is_over, new.is_over, new.follows, lost) == (True, False, None, ["words"])


@pytest.mark.parametrize(
    ("before", "after", "is_heard"), [(True, False, True), (True, True, False), (False, True, False)]
)
def test_who_moves_from_a_relay_is_heard_to_the_end_there(
    lost: list[str], before: bool, after: bool, is_heard: bool
) -> None:
    old, new = Heard(before), Heard(after)
    hear(lost, old, new)
    assert (new.follows is old, old.is_over, lost == []) == (is_heard, not is_heard, is_heard)


def test_what_is_left_of_a_stream_that_has_ended_comes_first(lost: list[str]) -> None:
    old, new = Heard(has_ended=True), Heard()
    hear(lost, old, new)
    assert (new.follows, old.is_over, lost) == (old, False, [])


def test_of_each_protocol_two_are_held_at_most_and_all_are_closed(lost: list[str]) -> None:
    streams = [Heard(has_ended=True) for _ in range(5)]
    arrivals = hear(lost, *streams)
    assert [each.is_over for each in streams] == [True, True, True, False, False]
    arrivals.close()
    assert all(each.is_over for each in streams)
