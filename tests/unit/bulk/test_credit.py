"""Credit: what may be on its way is bounded, grows with what is given back, and nonsense is not believed."""

from __future__ import annotations

import random

import pytest

from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.base.wire import MEMORY_UNIT, payload_memory
from shoal.protocol.net.bulk.flow_control import GRAIN, LEAST, SHARED, Credit, CreditPool
from tests.unit.bulk.kit import PEER

MIB = 1 << 20


def opened(pool: CreditPool) -> Credit:
    credit = Credit()
    pool.open(credit)
    return credit


def test_each_payload_costs_its_room_and_the_last_one_may_cost_more_than_is_left() -> None:
    credit = Credit()
    with pytest.raises(RemoteError, match="without credit"):
        credit.charge(1, PEER)
    credit.grant(GRAIN)
    credit.charge(1, PEER)
    assert credit.available == GRAIN - MEMORY_UNIT
    credit.spend(GRAIN)
    assert credit.available == -MEMORY_UNIT
    with pytest.raises(RemoteError, match="without credit"):
        credit.charge(1, PEER)
    credit.grant(2 * GRAIN)
    credit.charge(GRAIN - MEMORY_UNIT, PEER)
    assert credit.available == 0


@pytest.mark.parametrize("total", [0, GRAIN - 1, GRAIN + 1, 2 * GRAIN - 1, GRAIN + SHARED + 1, 2**63])
def test_who_says_what_nobody_means_is_not_believed(total: int) -> None:
    credit = Credit()
    credit.grant(GRAIN)
    credit.spend(GRAIN)
    with pytest.raises(TransportError, match="was given credit"):
        credit.grant(total)
    credit.grant(GRAIN)
    assert credit.available == 0, "nothing new"
    credit.grant(GRAIN + SHARED)
    assert credit.available == SHARED


def test_a_single_socket_gets_all_and_gets_it_again_as_room_is_given_back() -> None:
    pool = CreditPool()
    credit = opened(pool)
    assert pool.share_out(0) == [credit]
    assert credit.granted == SHARED
    for _ in range(4):
        credit.spend(SHARED // 4)
    assert credit.available == 0
    assert not pool.share_out(SHARED)
    assert not pool.share_out(SHARED - GRAIN + 1), "it is not worth a word yet"
    assert pool.share_out(SHARED - GRAIN) == [credit]
    assert credit.granted == SHARED + GRAIN


def test_sockets_share_evenly_and_one_that_is_gone_leaves_its_share() -> None:
    pool = CreditPool()
    first = opened(pool)
    pool.share_out(0)
    first.spend(SHARED)
    second = opened(pool)
    assert not pool.share_out(SHARED)
    assert pool.share_out(0) == [first, second]
    assert (first.granted, second.granted) == (SHARED + SHARED // 2, SHARED // 2)
    pool.close(first)
    assert pool.share_out(0) == [second]
    assert second.granted == SHARED


def test_a_dead_socket_that_has_all_keeps_no_other_from_getting_some() -> None:
    pool = CreditPool()
    opened(pool)
    pool.share_out(0)
    second = opened(pool)
    assert pool.share_out(0) == [second]
    assert second.granted == LEAST
    second.spend(LEAST)
    assert not pool.share_out(LEAST)
    assert pool.share_out(LEAST // 2) == [second]
    assert second.granted == LEAST + LEAST // 2


def test_whatever_happens_what_is_held_or_on_credit_is_bounded_and_credit_comes_back() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pool, held, largest = CreditPool(), 0, 64 * MEMORY_UNIT
    credits = [opened(pool)]
    for _ in range(5_000):
        match chance.randrange(4):
            case 0 if len(credits) < 4:
                credits.append(opened(pool))
            case 1 if len(credits) > 1:
                pool.close(credits.pop(chance.randrange(len(credits))))
            case 2 if (credit := chance.choice(credits)).available > 0:
                size = chance.randrange(1, largest + 1)
                credit.spend(size)
                held += payload_memory(size)
            case 3:
                held -= min(held, chance.randrange(64) * MEMORY_UNIT)
        pool.share_out(held)
        on_credit = sum(max(0, each.available) for each in credits)
        assert on_credit <= SHARED + 3 * LEAST
        assert held <= SHARED + 3 * LEAST + 4 * largest
    one = chance.choice(credits)
    one.spend(max(0, one.available))
    pool.share_out(0)
    assert one.available > 0, "who has none gets some when nothing is held, whatever the others have"
