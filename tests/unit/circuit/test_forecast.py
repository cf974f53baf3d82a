"""The predicted path of two peers, from what each knows of itself: all places of the laboratory, by hand."""

from __future__ import annotations

import json
from itertools import product

import pytest

from shoal.protocol.net.circuit.nat import Situation, forecast, forecasts

AT = {  # what a peer finds out about itself there
    "public": Situation(True, "public", False),
    "blocked": Situation(False, "public", True),
    "home-drop": Situation(False, "keeping", True),
    "home-reject": Situation(False, "keeping", True),
    "home-symmetric": Situation(False, "symmetric", True),
    "home-double": Situation(False, "keeping", True),
}
TABLE = """
public          direct   direct   direct   direct   direct   direct
blocked         direct   punched  punched  punched  relayed  punched
home-drop       direct   punched  punched  punched  relayed  punched
home-reject     direct   punched  punched  punched  relayed  punched
home-symmetric  direct   relayed  relayed  relayed  relayed  relayed
home-double     direct   punched  punched  punched  relayed  punched
"""
BY_HAND = {row.split()[0]: dict(zip(AT, row.split()[1:], strict=True)) for row in TABLE.strip().splitlines()}


@pytest.mark.parametrize(("one", "other"), list(product(AT, AT)))
def test_every_place_and_every_other(one: str, other: str) -> None:
    assert forecast(AT[one], AT[other]) == BY_HAND[one][other]


UNTRIED = Situation(None, "unknown", False)
UNMAPPED = Situation(False, "unknown", True)
ALONE = Situation(False, "keeping", False)


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        (UNTRIED, AT["public"], "direct"),  # whoever we are
        (UNTRIED, AT["home-drop"], "unknown"),  # hangs on whether others can dial us
        (UNMAPPED, AT["home-drop"], "unknown"),  # hangs on our router
        (UNMAPPED, AT["home-symmetric"], "relayed"),  # whatever our router does
        (ALONE, ALONE, "none"),
        (ALONE, AT["home-drop"], "punched"),  # by the other's relay
        (ALONE, AT["home-symmetric"], "relayed"),
        (ALONE, AT["public"], "direct"),
    ],
)
def test_what_is_not_known_is_not_guessed(one: Situation, other: Situation, path: str) -> None:
    assert forecast(one, other) == forecast(other, one) == path


def test_each_kind_of_others() -> None:
    kinds = {"public": "direct", "firewalled": "punched", "keeping": "punched", "symmetric": "relayed"}
    assert forecasts(AT["home-drop"]) == kinds
    assert set(forecasts(AT["public"]).values()) == {"direct"}


def test_a_situation_survives_a_file() -> None:
    for each in (*AT.values(), UNTRIED):
        assert Situation.from_json(json.loads(json.dumps(each.as_json()))) == each
