"""Several joiners get one version from donors with slow uplinks: the cores alone, on a small clock of their own."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

import pytest

from shoal.protocol.base.effects import Blamed, Effect, Send, Tell, Timer, Wake
from shoal.protocol.base.ids import NO_DIGEST, PeerId, content_hash
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, Message, decode, encode
from shoal.protocol.catchup.download import WAITS, bits_of
from shoal.protocol.catchup.transfer import FIRST_PATIENCE, PATIENCE, TELLING, WINDOW, Transfer
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.transfer import HaveChunks, StateChunk
from tests.simulation.versions import LAYOUT, Versions, root_of
from tests.unit.transfer_kit import VERSION, certified_by_root, history_after

CHUNKS = 200
STATE = [b"chunk %d" % index for index in range(CHUNKS)]
SLOW, FAST = 0.04, 0.004  # seconds for a chunk on an uplink: 25 and 250 MiB a second
DELAY = 0.01  # seconds
ALONE = CHUNKS * SLOW / 3  # by three donors


class Town:
    """Donors, joiners, and what is on its way between them."""

    def __init__(self, donors: int, joiners: int) -> None:
        self.now = 0.0
        self.donors = [PeerId(f"donor{number}") for number in range(donors)]
        self.joiners = [PeerId(f"joiner{number}") for number in range(joiners)]
        self.rooms = {peer: Versions({VERSION: STATE} if peer in self.donors else {}) for peer in self.all}
        certified = certified_by_root(root_of(STATE))
        self.cores = {peer: Transfer(peer, 0, certified, _Eyes(self, peer), self.rooms[peer]) for peer in self.all}
        self.done: dict[PeerId, float] = {}
        self.served: Counter[PeerId] = Counter()
        self.lies: Counter[PeerId] = Counter()
        self.blamed: list[tuple[PeerId, PeerId]] = []
        self.dead: set[PeerId] = set()
        self.hung: set[PeerId] = set()  # which seem to be alive, and do nothing
        self.liars: set[PeerId] = set()
        self.meet_at = 0.0  # when joiners learn of each other
        self.commit_every: float | None = None  # seconds after which donors keep the version only if it is pinned
        self.down: dict[PeerId, float] = {}  # seconds for a chunk on a slow way in
        self.up = SLOW  # seconds for a chunk on the donors' ways out
        self._busy_down: dict[PeerId, float] = {}
        self._busy = dict.fromkeys(self.all, 0.0)
        self._inputs: list[tuple[float, int, PeerId, PeerId | None, Message | Timer]] = []
        self._number = count()

    @property
    def all(self) -> list[PeerId]:
        return [*self.donors, *self.joiners]

    def start(self, joiner: PeerId) -> None:
        self._carry_out(joiner, self.cores[joiner].start(self.now, beyond=-1))

    def hear(self, peer: PeerId, sender: PeerId, message: Message) -> None:
        """`peer` gets a message that no core has sent."""
        self._carry_out(peer, self.cores[peer].receive(self.now, sender, message))

    def run(self, wanted: Iterable[PeerId]) -> None:
        """Until these are done."""
        while set(wanted) - self.done.keys():
            assert self.now < 10_000.0, self.cores
            self._step()

    def run_until(self, when: float) -> None:
        """Until it is so late."""
        while self._inputs[0][0] < when:
            self._step()
        self.now = when

    def _step(self) -> None:
        before = self.now
        self.now, _, peer, sender, what = heapq.heappop(self._inputs)
        if self.commit_every is not None and before // self.commit_every < self.now // self.commit_every:
            self._commit()
        if peer in self.dead or peer in self.hung:
            return
        core = self.cores[peer]
        if sender is None:
            assert isinstance(what, Timer)
            effects = core.fire(self.now, what)
        else:
            assert isinstance(what, Message)
            effects = core.receive(self.now, sender, what)
        self._carry_out(peer, effects)
        if core.take() is not None:
            self.done[peer] = self.now
            assert self.rooms[peer].take() == STATE
            self.rooms[peer].add(VERSION, STATE)

    def _commit(self) -> None:
        for donor in self.donors:
            if VERSION not in self.rooms[donor].pinned:
                self.rooms[donor].states.clear()

    def _carry_out(self, peer: PeerId, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Wake(after, timer):
                    self._put(self.now + after, peer, None, timer)
                case Tell(Blamed(liar, _)):
                    self.blamed.append((peer, liar))
                case Send(to, StateChunk() as message):
                    self._send_chunk(peer, to, message)
                case Send(to, message):
                    decoded = decode(encode(message), peer, MAX_CONTROL_FRAME)
                    self._put(self.now + DELAY, to, peer, decoded)

    def _send_chunk(self, peer: PeerId, to: PeerId, message: StateChunk) -> None:
        """Payloads leave one after the other."""
        payload = self.rooms[peer].chunk(message.round, message.index)
        if peer in self.liars:
            payload = b"a lie"
            self.lies[peer] += 1
        self.served[peer] += 1
        self._busy[peer] = max(self._busy[peer], self.now) + (self.up if peer in self.donors else FAST)
        self.cores[peer].donor.payload_done(to, message)
        at = self._busy[peer] + DELAY
        if to in self.down:
            at = self._busy_down[to] = max(self._busy_down.get(to, 0.0), at) + self.down[to]
        self._put(at, to, peer, replace(message, payload=payload))

    def _put(self, at: float, peer: PeerId, sender: PeerId | None, what: Message | Timer) -> None:
        heapq.heappush(self._inputs, (at, next(self._number), peer, sender, what))


class _Eyes:
    """What a member sees of the others."""

    def __init__(self, town: Town, me: PeerId) -> None:
        self._town, self._me = town, me

    def alive(self) -> list[PeerId]:
        seen = self._town.donors if self._town.now < self._town.meet_at else self._town.all
        return [peer for peer in seen if peer != self._me and peer not in self._town.dead]

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self.alive()

    def status(self, peer: PeerId) -> RunStatus | None:
        has = peer in self._town.donors or peer in self._town.done
        round, phase = (VERSION + 1, "training") if has else (0, "syncing")
        history = history_after(round) if has else NO_DIGEST
        return RunStatus(round, history, NO_DIGEST, phase, 0, 0, None, True, 0, 0, "public")


def test_one_takes_what_the_donors_lines_allow() -> None:
    town = Town(3, 1)
    town.start(town.joiners[0])
    town.run(town.joiners)
    assert ALONE <= town.now <= 1.1 * ALONE
    assert sum(town.served.values()) == CHUNKS


@pytest.mark.parametrize(("joiners", "meet_at"), [(2, 0.0), (5, 0.0), (5, 0.5), (12, 0.0)])
def test_several_at_once_take_hardly_longer_than_one(joiners: int, meet_at: float) -> None:
    town = Town(3, joiners)
    town.meet_at = meet_at
    for joiner in town.joiners:
        town.start(joiner)
    town.run(town.joiners)
    assert town.now <= 1.6 * ALONE
    assert not town.blamed


def test_one_that_comes_later_gets_what_the_others_have() -> None:
    town = Town(3, 3)
    first, second, late = town.joiners
    town.start(first)
    town.start(second)
    town.run([first, second])
    begin = town.now
    town.start(late)
    town.run([late])
    assert town.now - begin <= ALONE


def test_what_was_left_to_those_who_die_is_got_from_the_donors() -> None:
    town = Town(3, 3)
    for joiner in town.joiners:
        town.start(joiner)
    town.run_until(ALONE / 4)
    town.dead.update(town.joiners[1:])
    town.run(town.joiners[:1])
    assert town.now <= ALONE + 10.0


def test_another_joiner_that_lies_costs_one_chunk_and_one_that_dies_little_time() -> None:
    town = Town(3, 4)
    honest, liar, mortal = town.joiners[:2], town.joiners[2], town.joiners[3]
    town.liars.add(liar)
    for joiner in town.joiners:
        town.start(joiner)
    town.run_until(ALONE / 2)
    town.dead.add(mortal)
    town.run(honest)
    assert town.blamed
    assert {lied for _, lied in town.blamed} == {liar}
    assert len(town.blamed) == len(set(town.blamed)), "nobody asks it again"
    assert town.now <= 1.6 * ALONE + 4.0


@pytest.mark.parametrize("seconds", [1.0, 8.0])
def test_one_with_a_slow_line_gets_there_and_fetches_hardly_anything_twice(seconds: float) -> None:
    """8 s for a chunk of 1 MiB is 1 Mbit/s; three donors send at once, so each takes three times as long."""
    town = Town(3, 1)
    (joiner,) = town.joiners
    town.down[joiner] = seconds
    town.start(joiner)
    town.run_until(0.5 * CHUNKS * seconds)
    left = town.cores[joiner].seconds_left(town.now)
    assert left is not None
    assert 0.4 * CHUNKS * seconds <= left <= 0.7 * CHUNKS * seconds
    town.run([joiner])
    assert town.now <= 1.1 * CHUNKS * seconds
    assert sum(town.served.values()) <= 1.1 * CHUNKS


@pytest.mark.parametrize("seconds", [0.5, 8.4, 25.0])
def test_donors_keep_the_version_for_one_with_a_slow_line(seconds: float) -> None:
    """From 40 to 0.3 Mbit/s: at 1 Mbit/s a chunk of each of eight donors takes more than a minute."""
    town = Town(8, 1)
    town.commit_every = 5.0
    (joiner,) = town.joiners
    town.down[joiner] = seconds
    town.start(joiner)
    town.run([joiner])
    assert town.now <= 1.1 * CHUNKS * seconds
    assert sum(town.served.values()) <= 1.1 * CHUNKS


def test_many_slow_donors_fill_a_fast_line() -> None:
    """Each has an uplink of 1 Mbit/s, so a chunk takes long from each, and they are asked all the same."""
    town = Town(8, 1)
    town.up = 8.4
    town.start(town.joiners[0])
    town.run(town.joiners)
    assert town.now <= 1.2 * CHUNKS * town.up / 8


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_who_has_a_slow_line_does_not_slow_the_others(seconds: float) -> None:
    """What is left to it is got from the donors once it falls behind."""
    town = Town(3, 2)
    fast, slow = town.joiners
    town.down[slow] = seconds
    for joiner in town.joiners:
        town.start(joiner)
    town.run([fast])
    assert town.done[fast] <= 2.0 * ALONE


def test_who_says_again_and_again_that_it_has_nothing_stops_nobody() -> None:
    town = Town(3, 2)
    honest, liar = town.joiners
    town.start(honest)
    nothing = HaveChunks(0, VERSION, root_of(STATE), bytes((CHUNKS + 7) // 8))
    while honest not in town.done:
        town.run_until(town.now + 0.2)
        if honest not in town.done:
            town.hear(honest, liar, nothing)
        assert town.now < 2.0 * ALONE


@pytest.mark.parametrize("hung_donors", [0, 1])
@pytest.mark.parametrize(("seconds", "others"), [(0.04, 40), (0.5, 40), (8.4, 4), (8.4, 40)])
def test_others_that_claim_to_have_all_and_send_nothing_hardly_slow_a_download(
    seconds: float, others: int, hung_donors: int
) -> None:
    """From 200 to 1 Mbit/s; each of them says so again and again."""
    town = Town(3, 1 + others)
    honest = town.joiners[0]
    town.hung.update([*town.joiners[1:], *town.donors[:hung_donors]])
    town.down[honest] = seconds
    town.start(honest)
    claim = _claim(range(CHUNKS))
    while honest not in town.done:
        town.run_until(town.now + max(TELLING, seconds / 4))
        for each in town.joiners[1:]:
            if honest not in town.done:
                town.hear(honest, each, claim)
        assert town.now < 1.05 * CHUNKS * seconds + 10.0
    assert sum(town.served.values()) <= 1.1 * CHUNKS


@pytest.mark.parametrize("others", [1, 15])
def test_others_that_hardly_get_on_are_not_left_the_rest_for_long(others: int) -> None:
    """Each says that it gets on, of what is here already, so that it is asked for nothing and may keep its share."""
    town = Town(3, 1 + others)
    honest = town.joiners[0]
    town.hung.update(town.joiners[1:])
    town.start(honest)
    claimed = 0.0
    while honest not in town.done:
        town.run_until(town.now + TELLING)
        claimed += 0.1
        if honest in town.done:
            break
        download = town.cores[honest]._download
        here = sorted(download.here) if download is not None else []
        has = here[: max(len(here) // 3 + 1, int(claimed))]
        for each in town.joiners[1:]:
            town.hear(honest, each, _claim(has))
        assert town.now < 2.0 * ALONE + 10.0


def test_one_that_hardly_gets_on_is_not_left_the_rest_though_nothing_has_come_since_a_restart() -> None:
    """What is missing is that one's share, and the only donor that was asked before it was there is silent."""
    town = Town(3, 2)
    honest, other = town.joiners
    town.hung.add(other)
    town.rooms[honest].begin(VERSION, LAYOUT, [content_hash(chunk) for chunk in STATE])
    for index in range(0, CHUNKS, 2):
        town.rooms[honest].put(index, STATE[index])
    town.start(honest)
    town.run_until(2.5 * DELAY)
    download = town.cores[honest]._download
    assert download is not None
    town.hung.update(peer for peer, _ in download.asked.values())
    claimed = CHUNKS // 4
    while honest not in town.done:
        town.hear(honest, other, _claim(range(0, 2 * claimed, 2)))
        claimed += 1
        town.run_until(town.now + PATIENCE - TELLING)
        assert town.now < FIRST_PATIENCE + 2 * PATIENCE + ALONE


@pytest.mark.parametrize("claims", [1, 2])
def test_one_that_brings_a_chunk_now_and_then_is_not_left_the_rest_for_long(claims: int) -> None:
    """What it claims beyond that a donor is asked for, so that these are heard now and then, too."""
    town = Town(3, 2)
    honest, other = town.joiners
    town.hung.add(other)
    town.start(honest)
    town.run_until(4 * DELAY)
    while honest not in town.done:
        assert town.now < 2.0 * ALONE + (WAITS + 1) * PATIENCE
        if (download := town.cores[honest]._download) is None:
            break
        for index in [index for index, (peer, _) in download.asked.items() if peer == other]:
            town.hear(honest, other, StateChunk(0, VERSION, index, STATE[index]))
        town.hear(honest, other, _claim([*download.here, *sorted(download.reserved)[:claims]]))
        town.run_until(town.now + PATIENCE / 2 - TELLING)


def test_a_donor_that_begins_to_lie_costs_what_is_on_its_way_from_it() -> None:
    town = Town(3, 1)
    (joiner,) = town.joiners
    town.start(joiner)
    town.run_until(ALONE / 2)
    town.liars.add(town.donors[0])
    town.run(town.joiners)
    assert town.blamed
    assert 1 <= town.lies[town.donors[0]] <= WINDOW


def _claim(chunks: Iterable[int]) -> HaveChunks:
    return HaveChunks(0, VERSION, root_of(STATE), bits_of(chunks, CHUNKS))
