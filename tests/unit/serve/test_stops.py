"""Stop sequences, however the text is cut into parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.node.inference.engine.sequence import Stops

LETTERS = st.text("ab", max_size=24)


def fed(parts: list[str], stops: list[str]) -> tuple[str, bool]:
    """The text that goes out, and whether a stop was found."""
    machine = Stops(stops)
    out = "".join(machine.push(part) for part in parts)
    return out + machine.flush(), machine.found


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_letter_by_letter_it_ends_before_the_first_stop_that_is_whole(text: str, stops: list[str]) -> None:
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected, found = text, bool(ends)
    if ends:
        longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
        expected = text[: ends[0] - longest]
    assert fed(list(text), stops) == (expected, found)


@given(st.lists(st.text("ab", max_size=5), max_size=8), st.text("ab", min_size=1, max_size=5))
def test_one_stop_is_found_however_the_text_is_cut(parts: list[str], stop: str) -> None:
    text = "".join(parts)
    assert fed(parts, [stop]) == (text.partition(stop)[0], stop in text)


def test_no_part_of_a_stop_goes_out_and_what_was_none_does_in_the_end() -> None:
    machine = Stops(["END"])
    assert [machine.push(part) for part in ("one E", "N", "E", "N")] == ["one ", "", "EN", ""]
    assert machine.flush() == "EN"
    machine = Stops(["END"])
    assert [machine.push(part) for part in ("one E", "N", "D two")] == ["one ", "", ""]
    assert (machine.found, machine.flush(), machine.push("three")) == (True, "", "")
