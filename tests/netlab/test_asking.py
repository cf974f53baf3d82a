"""Experts on peers behind routers, asked over lines as the internet has them, and over paths that break."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.netlab.experts import Family, Seat, Written
from tests.netlab.lab import Lab
from tests.netlab.links import Link

FRONT = Seat("home-drop", {})
CODE, PROSE = {"code": 1}, {"prose": 2}
LINE = Link(delay=0.015)  # a round trip of 60 ms between two, of 120 by a relay
LOSSY = Link(delay=0.015, loss=0.01)
PUNCHED, RELAYED = ("home-drop", "home-double"), ("home-symmetric", "home-symmetric")
LENGTH = 80  # tokens of a text
TWIN = (pytest.mark.slow, pytest.mark.patient)  # of a test that runs with the tiers


def show(title: str, written: list[Written]) -> None:
    tokens, seconds = sum(each.tokens for each in written), max(each.seconds for each in written)
    print(f"\n{title}: {len(written)} streams, {tokens / seconds:.0f} tokens/s in all", flush=True)


def test_a_server_at_home_asks_an_expert_on_a_public_peer(lab: Lab, children: Children, tmp_path: Path) -> None:
    family = Family(lab, children, tmp_path, {"front": FRONT, "left": Seat("public", CODE)}, link=LINE)
    family.begin()
    family.see(code=1)
    family.serve()
    written = family.streams(4, LENGTH)
    assert all(each.lost == [] and each.experts == {"code": 1.0} for each in written), written
    assert family.path("left") == "direct"
    show("from home to a public peer", written)


@pytest.mark.parametrize("places", [PUNCHED, pytest.param(RELAYED, marks=TWIN)], ids="+".join)
def test_a_server_at_home_asks_an_expert_at_another_home(
    lab: Lab, children: Children, tmp_path: Path, places: tuple[str, str]
) -> None:
    """Over lines that lose 1 % of the packets."""
    front, left = places
    family = Family(lab, children, tmp_path, {"front": Seat(front, {}), "left": Seat(left, CODE)}, link=LOSSY)
    family.begin()
    family.see(code=1)
    family.serve()
    written = family.streams(4, LENGTH)
    assert all(each.lost == [] and each.experts == {"code": 1.0} for each in written), written
    family.until(lambda: family.path("left") == ("punched" if places == PUNCHED else "relayed"), "the best way")
    show(f"{' and '.join(places)}, {family.path('left')}", written)


@pytest.mark.slow
def test_where_a_line_is_cut_another_holder_goes_on(lab: Lab, children: Children, tmp_path: Path) -> None:
    """Packets vanish, and nobody is told. Neither holder is public: it could be the relay that leads to the other."""
    seats = {"front": FRONT, "left": Seat("home-symmetric", CODE), "spare": Seat("home-drop", CODE)}
    family = Family(lab, children, tmp_path, seats, link=LINE)
    family.begin()
    family.see(code=2)
    family.serve("--patience", "6")
    written = family.streams(4, LENGTH, lambda: family.cut(family.writer("code")))
    show("the line of one of two holders is cut", written)
    assert all(each.lost == [] and each.experts == {"code": 1.0} for each in written), written


def test_an_expert_that_is_lost_is_asked_again_when_its_line_is_back(
    lab: Lab, children: Children, tmp_path: Path
) -> None:
    seats = {"front": FRONT, "left": Seat("public", CODE), "right": Seat("home-double", PROSE)}
    family = Family(lab, children, tmp_path, seats, link=LINE)
    family.begin()
    family.see(code=1, prose=1)
    family.serve("--patience", "3")
    written = family.streams(4, LENGTH, lambda: family.cut("right"))
    show("the line of an expert's only holder is cut", written)
    assert all(each.lost == ["prose"] and each.experts == {"code": 1.0} for each in written), written
    lab.internet.mend()
    took = family.until(lambda: family.stream(3).lost == [], "the expert to be asked again")
    print(f"  it is asked again {took:.1f} s after the line is back")


@pytest.mark.slow
def test_where_a_relay_dies_the_texts_go_on_by_another(lab: Lab, children: Children, tmp_path: Path) -> None:
    """No expert is lost to any of them, though nobody else has it."""
    seats = {"front": Seat("home-symmetric", {}), "left": Seat("home-symmetric", CODE), "right": Seat("public", PROSE)}
    family = Family(lab, children, tmp_path, seats, doors=3, link=LINE)
    family.begin()
    family.see(code=1, prose=1)
    family.serve()
    written = family.streams(4, LENGTH, lambda: family.kill_relay_to("left"))
    show("the relay is killed by which an expert is asked", written)
    assert all(each.lost == [] and set(each.experts) == {"code", "prose"} for each in written), written
    assert family.relay_to("left") in family.doors
