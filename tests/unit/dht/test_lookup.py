"""One lookup: paths, ends, and what liars on one path can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from shoal.dht.calls import Calls
from shoal.dht.effects import Blamed, Call
from shoal.dht.keys import K, node_id
from shoal.dht.lookup import ALPHA, MAX_CALLS, MAX_CANDIDATES, MAX_DUDS, PATHS, Candidate, Lookup, Path, State
from shoal.dht.table import Table
from shoal.protocol.messages.dht import Contact, Nodes, Records
from tests.unit.dht.core_kit import ME, NOW, Wire, as_digest, contact, contacts, distance, filled

TARGET = node_id(ME) ^ (1 << 255)
Answer = Callable[[Call], list[Contact] | None]


class Watch:
    """A lookup for `wanted` nearest, and how it goes on."""

    def __init__(self, table: Table, wanted: int = 5) -> None:
        self.moves = 0
        calls = Calls(table)
        self.wire = Wire(calls)
        self.lookup = Lookup(ME, table, calls, as_digest(TARGET), wanted, self._move)
        self.lookup.begin(NOW)
        self.asked: list[Contact] = []

    def _move(self, now: float) -> None:
        self.moves += 1

    def run(self, answer: Answer) -> None:
        """Let everybody answer, or be silent where `answer` gives None, until the end."""
        while not self.lookup.is_over:
            waiting = list(self.wire.look())
            assert waiting, "nobody is asked and the lookup goes on"
            for ask in waiting:
                self.asked.append(ask.to)
                named = answer(ask)
                if named is None:
                    self.wire.fail(NOW, ask)
                else:
                    self.wire.answer(NOW, ask, Nodes(tuple(named)))

    def nearest(self, count: int) -> list[Contact]:
        return [candidate.contact for candidate in self.lookup.nearest(count)]


def by_distance(everybody: list[Contact]) -> list[Contact]:
    return sorted(everybody, key=lambda each: distance(each, TARGET))


def knows(everybody: list[Contact]) -> Answer:
    """All servers are honest and know all."""
    near = by_distance(everybody)
    return lambda ask: [each for each in near if each.peer != ask.to.peer][:K]


def test_the_nearest_of_all_are_found() -> None:
    everybody = contacts(300)
    watch = Watch(filled(everybody[:40]))
    watch.run(knows(everybody))
    assert watch.nearest(5) == by_distance(everybody)[:5]
    assert all(candidate.state is State.ANSWERED for candidate in watch.lookup.nearest(5))
    assert len(watch.asked) == len({each.peer for each in watch.asked}), "nobody is asked twice"
    assert watch.lookup.hops == 2
    assert len(watch.asked) <= PATHS + 5 + PATHS


def test_the_first_calls_go_out_on_disjoint_paths() -> None:
    watch = Watch(filled(contacts(100)))
    assert len(watch.wire.look()) == PATHS


def test_where_the_table_holds_all_a_single_call_goes_out_first() -> None:
    everybody = contacts(12)
    watch = Watch(filled(everybody), wanted=5)
    [ask] = watch.wire.look()
    assert ask.to == by_distance(everybody)[0]
    watch.wire.answer(NOW, ask, Nodes(()))
    assert len(watch.wire.look()) == ALPHA


def test_with_nobody_to_ask_it_ends_at_once() -> None:
    watch = Watch(filled([]))
    assert watch.lookup.is_over
    assert watch.moves == 1


def test_silent_nodes_are_gone_around() -> None:
    everybody = contacts(200)
    dead = {each.peer for each in by_distance(everybody)[:10:2]}
    honest = knows(everybody)
    watch = Watch(filled(everybody[:60]))
    watch.run(lambda ask: None if ask.to.peer in dead else honest(ask))
    assert watch.nearest(5) == [each for each in by_distance(everybody) if each.peer not in dead][:5]


def test_a_liar_with_ghosts_costs_its_own_path_a_few_calls() -> None:
    everybody = contacts(200)
    liar = by_distance(everybody[:60])[0]
    ghosts = sorted(contacts(4000), key=lambda each: distance(each, TARGET))[:K]
    alive = {each.peer for each in everybody}
    honest = knows(everybody)
    watch = Watch(filled(everybody[:60]))

    def answer(ask: Call) -> list[Contact] | None:
        if ask.to == liar:
            return ghosts
        return honest(ask) if ask.to.peer in alive else None

    watch.run(answer)
    assert watch.nearest(5) == by_distance(everybody)[:5]
    assert sum(each.peer not in alive for each in watch.asked) <= MAX_DUDS


def test_all_who_named_a_candidate_vouch_for_it() -> None:
    watch = Watch(filled(contacts(100)))
    named = sorted(contacts(2000), key=lambda each: distance(each, TARGET))[0]
    first, second, _ = watch.wire.look()
    for ask in (first, second):
        watch.wire.answer(NOW, ask, Nodes((named,)))
    assert watch.lookup.nearest(1)[0].speakers == [first.to.peer, second.to.peer]


def test_a_crowd_that_names_only_itself_leaves_the_other_paths_alone() -> None:
    everybody = contacts(200)
    crowd = contacts(60)
    liar = by_distance(everybody[:60])[0]
    members = {each.peer for each in (liar, *crowd)}
    honest, lying = knows(everybody), knows(crowd)
    watch = Watch(filled(everybody[:60]))
    watch.run(lambda ask: lying(ask) if ask.to.peer in members else honest(ask))
    nearest = [each for each in by_distance(everybody) if each != liar][:5]
    assert [each for each in watch.nearest(40) if each.peer not in members][:5] == nearest


def test_who_names_itself_is_blamed_and_passed_over() -> None:
    everybody = contacts(100)
    liar = by_distance(everybody[:60])[0]
    honest = knows(everybody)
    table = filled(everybody[:60])
    watch = Watch(table)
    watch.run(lambda ask: [liar] if ask.to == liar else honest(ask))
    assert watch.wire.told == [Blamed(liar.peer, "names itself as one that is closer")]
    assert liar.peer not in table
    assert liar not in watch.nearest(20)


def test_the_wrong_kind_of_answer_is_blamed() -> None:
    watch = Watch(filled(contacts(100)))
    ask = watch.wire.look()[0]
    watch.wire.answer(NOW, ask, Records((), 0, ()))
    assert isinstance(watch.wire.told[0], Blamed)


def test_a_lookup_that_is_led_on_for_ever_ends() -> None:
    watch = Watch(filled(contacts(60)))
    step = iter(range(10**6))

    def answer(ask: Call) -> list[Contact]:
        next(step)
        far = distance(ask.to, TARGET)
        return [each for each in contacts(K) if distance(each, TARGET) < far][:3]

    watch.run(answer)
    assert len(watch.asked) <= MAX_CALLS


def test_a_late_answer_counts() -> None:
    everybody = contacts(100)
    near = by_distance(everybody)
    table = filled(everybody)
    watch = Watch(table, wanted=2)
    late = watch.wire.look()[0]
    watch.wire.lose_patience(NOW + 1)
    watch.wire.answer(NOW + 1.5, late, Nodes(()))
    candidate = next(each for each in watch.lookup.nearest(9) if each.contact == late.to)
    assert candidate.state is State.ANSWERED
    assert late.to in near


def test_paused_it_asks_nobody_and_then_goes_on() -> None:
    watch = Watch(filled(contacts(100)))
    first = list(watch.wire.look())
    watch.lookup.pause()
    for ask in first:
        watch.wire.answer(NOW, ask, Nodes(()))
    assert watch.wire.look() == []
    watch.lookup.go_on(NOW)
    assert len(watch.wire.look()) == PATHS


def test_hearsay_about_unknown_servers_unsettles_their_buckets() -> None:
    known, unknown = contacts(8), contacts(1)
    table = filled(known)
    assert table.is_complete(TARGET, 5, NOW)
    watch = Watch(table)
    watch.wire.answer(NOW, watch.wire.look()[0], Nodes(tuple(unknown)))
    assert not table.is_complete(node_id(unknown[0].peer), 5, NOW)


# -- one path -------------------------------------------------------------------------------------------------


def candidates(count: int, speaker: Contact | None = None) -> list[Candidate]:
    return [Candidate(each, distance(each, TARGET), 1, [speaker.peer] if speaker else []) for each in contacts(count)]


def test_a_path_holds_a_bounded_number_the_nearest() -> None:
    path, all_of_them = Path(Counter()), candidates(3 * MAX_CANDIDATES)
    path.offer(all_of_them)
    path.offer(all_of_them[:5])
    nearest = sorted(all_of_them, key=lambda each: each.distance)[:MAX_CANDIDATES]
    assert list(path.usable()) == nearest


@pytest.mark.parametrize("duds", [MAX_DUDS - 1, MAX_DUDS])
def test_the_rest_of_what_a_bad_speaker_said_is_dropped(duds: int) -> None:
    speaker = contact()
    path = Path(Counter({speaker.peer: duds}))
    path.offer(candidates(4, speaker) + candidates(2))
    assert len(list(path.usable())) == (6 if duds < MAX_DUDS else 2)


def test_a_liar_discredits_nobody_by_naming_it_beside_silent_nodes() -> None:
    liar, honest = contact(), contact()
    [named] = candidates(1, liar)
    path = Path(Counter({liar.peer: MAX_DUDS}))
    path.offer([named])
    assert list(path.usable()) == []
    named.speakers.append(honest.peer)
    assert list(path.usable()) == [named]
