"""`shoal doctor` as a command: its exit codes, its JSON, and its words when an examination breaks off."""

from __future__ import annotations

import json

import pytest

from shoal.node.api.client import Client
from shoal.node.base.exits import Exit
from shoal.node.base.home import find_home
from shoal.protocol.base.errors import LocalError
from tests.fake_service import EXAMINED, PEER, FakeService
from tests.unit.test_cli import Shoal, node, shoal

__all__ = ["node", "shoal"]  # fixtures


def test_people_read_it_as_it_goes_and_programs_get_the_report(shoal: Shoal, node: FakeService) -> None:
    code, out, err = shoal("doctor", PEER)
    assert (code, err) == (Exit.OK, "")
    assert out.rstrip().endswith("Slow. Forward.")
    assert "\x1b" not in out
    code, out, err = shoal("doctor", PEER, "--json")
    assert (code, err) == (Exit.OK, "")
    assert json.loads(out) == EXAMINED[-1]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_whom_it_does_not_reach_is_an_exit_code(shoal: Shoal, node: FakeService, more: tuple[str, ...]) -> None:
    code, out, _ = shoal("doctor", "lonely", *more)
    assert code == Exit.UNREACHABLE
    assert "it is gone" in out


def test_what_goes_wrong_is_a_sentence(shoal: Shoal, node: FakeService) -> None:
    assert shoal("doctor", "nobody") == (Exit.FAILED, "", "shoal: no peer 'nobody' is known here\n")
    code, out, err = shoal("doctor", "broken", "--json")
    assert (code, out) == (Exit.FAILED, "")
    assert "broke off" in err


def test_lines_come_one_by_one(node: FakeService) -> None:
    answers = Client(find_home()).examine(PEER)
    assert next(answers) == EXAMINED[0]
    assert list(answers) == EXAMINED[1:]
    with pytest.raises(LocalError, match="'nobody'"):
        next(Client(find_home()).examine("nobody"))
