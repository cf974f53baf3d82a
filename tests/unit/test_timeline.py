"""What is recorded of a round: first, last, count and bytes by kind and peer; bounded whoever sends what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.node.run.phases import PhaseLog
from shoal.node.run.timelines import MOST_EVENTS, MOST_FLOWS, MOST_PHASES, OTHERS, Flow, Timeline, Trace, as_json
from shoal.protocol.averaging.events import Begun, Committed, Lapsed, Waiting
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.effects import Blamed
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.masks import common
from shoal.protocol.membership.members import PeerDown
from shoal.protocol.messages import averaging as wire
from shoal.protocol.messages.log import Result
from shoal.protocol.messages.node import GetManifest
from tests.fake_timeline import TIMELINE

ANNA, BERT, CARL, ME = PeerId("anna"), PeerId("bert"), PeerId("carl"), PeerId("me")
MEMBERS = (ANNA, BERT, CARL, ME)
BEGUN = Begun(5, MEMBERS, (ANNA, ANNA, BERT, ME), ANNA)


def part(chunk: int, size: int = 100, round: int = 5) -> wire.Contribution:
    return wire.Contribution(0, round, chunk, 0, 1, NO_DIGEST, b"x" * size)


def call(round: int) -> wire.Call:
    return wire.Call(0, round)


def decision(*masks: int) -> Decision:
    means = tuple(wire.Made(NO_DIGEST, bytes([mask]), 0, ANNA, 1, b"") for mask in masks)
    counted = common(made.mask for made in means)
    weights = (1,) * int.from_bytes(counted, "little").bit_count()
    return Decision(9, Result(0, 5, 8, NO_DIGEST, NO_DIGEST, counted, weights, ()), MEMBERS, means, ())


def at_work() -> Timeline:
    """In round 5, since 10.0; ready at 12.0."""
    timeline = Timeline()
    timeline.observe(9.0, "syncing", 0)
    timeline.observe(10.0, "training", 5)
    timeline.observe(12.0, "matching", 5)
    return timeline


def test_messages_are_counted_by_way_kind_and_peer() -> None:
    timeline = at_work()
    timeline.received(12.5, ANNA, part(0))
    timeline.received(12.75, ANNA, part(1, 50))
    timeline.sent(13.0, ANNA, part(2, 7))
    timeline.sent(13.5, BERT, call(5))
    timeline.sent(13.5, BERT, GetManifest("ab"))  # of no round
    assert timeline.current is not None
    assert timeline.current.flows == {
        ("received", "contribution", ANNA): Flow(12.5, 12.75, 2, 150),
        ("sent", "contribution", ANNA): Flow(13.0, 13.0, 1, 7),
        ("sent", "call", BERT): Flow(13.5, 13.5, 1, 0),
    }


def test_a_message_is_put_where_it_belongs_or_nowhere() -> None:
    timeline = at_work()
    for round in (4, 5, 6, 7):
        timeline.received(13.0, ANNA, call(round))
    timeline.observe(14.0, "applying", 0)
    timeline.received(14.5, BERT, call(6))  # is further on than we are
    assert timeline.observe(15.0, "training", 6) is timeline.previous
    timeline.received(16.0, ANNA, part(0))  # late, of the last round
    timeline.received(16.0, ANNA, call(4))
    before, now = timeline.previous, timeline.current
    assert before is not None
    assert now is not None
    assert (before.round, before.ended, now.round, now.ended) == (5, 15.0, 6, None)
    assert list(before.flows) == [("received", "call", ANNA), ("received", "contribution", ANNA)]
    assert list(now.flows) == [("received", "call", ANNA), ("received", "call", BERT)]


def test_before_the_first_round_nothing_is_gathered() -> None:
    timeline = Timeline()
    assert timeline.observe(1.0, "syncing", 0) is None
    timeline.received(1.0, ANNA, call(3))
    timeline.told(1.0, PeerDown(ANNA))
    assert timeline.current is None


def test_phases_follow_each_other_and_the_last_one_ends_with_the_round() -> None:
    timeline = at_work()
    for now, phase in ((13.0, "reducing"), (13.5, "reducing"), (14.0, "deciding"), (15.0, "applying")):
        timeline.observe(now, phase, 0 if phase == "applying" else 5)
    done = timeline.observe(16.0, "training", 6)
    assert done is not None
    shown = as_json(done, ME, now=18.0, clock=1000.0)
    assert [(each["phase"], each["from"], each["to"]) for each in shown["phases"]] == [
        ("training", -2.0, 0.0),
        ("matching", 0.0, 1.0),
        ("reducing", 1.0, 2.0),
        ("deciding", 2.0, 3.0),
        ("applying", 3.0, 4.0),
    ]
    assert (shown["ready_at"], shown["began"], shown["ended"], shown["committed"]) == (994.0, -2.0, 4.0, None)
    assert timeline.current is not None
    assert timeline.current.phases == [("training", 16.0)]


def test_what_the_member_tells() -> None:
    timeline = at_work()
    for now, event in (
        (12.1, Waiting("too few")),
        (12.2, Waiting("too few")),
        (12.3, BEGUN),
        (12.4, PeerDown(CARL)),
        (12.5, Lapsed(5)),
        (12.6, Blamed(BERT, "lies")),
        (12.7, Committed(decision(0b1111, 0b1011), (True, True))),
    ):
        timeline.told(now, event)
    assert timeline.current is not None
    shown = as_json(timeline.current, ME, 13.0, 0.0)
    assert [(each["at"], each["what"], each["peer"]) for each in shown["events"]] == [
        (0.1, "waiting", None),
        (0.3, "begun", ANNA),
        (0.4, "lost", CARL),
        (0.5, "undone", None),
        (0.6, "blamed", BERT),
        (0.7, "committed", None),
    ]
    assert shown["events"][1]["words"] == "4 members"
    assert shown["events"][5]["words"] == "entry 9 of the log"
    assert (shown["proposer"], shown["size"], shown["chunks"]) == (ANNA, 4, 4)
    assert shown["owners"] == {ANNA: 2, BERT: 1, ME: 1}
    assert (shown["committed"], shown["uncounted"]) == (0.7, [CARL])


def test_what_is_directed_is_told_once_though_it_goes_to_many() -> None:
    timeline = at_work()
    direct = wire.Direct(0, 5, (CARL,), ((0, 1), (1, 1), (2, 1)))
    for peer in (BERT, CARL):
        timeline.sent(13.0, peer, direct)
    timeline.received(14.0, ANNA, wire.Direct(0, 5, (), ((0, 2),)))  # of the next proposer
    assert timeline.current is not None
    assert [(each.what, each.peer, each.words) for each in timeline.current.events] == [
        ("directed", None, "3 chunks to other owners, on without 1 members"),
        ("directed", ANNA, "1 chunks to other owners"),
    ]


def test_who_was_waited_for_is_told_by_phase() -> None:
    phases, trace = PhaseLog(), Trace(5, [("matching", 1.0)])
    phases.observe(1.0, "matching", lambda: [ANNA, BERT])
    phases.observe(2.0, "reducing", lambda: [BERT])
    phases.observe(5.0, "applying", list)
    trace.waited = phases.waited()
    assert as_json(trace, ME, 5.0, 5.0)["waited_for"] == [
        {"phase": "reducing", "peer": BERT, "seconds": 3.0},
        {"phase": "matching", "peer": ANNA, "seconds": 1.0},
        {"phase": "matching", "peer": BERT, "seconds": 1.0},
    ]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 400).map(lambda number: PeerId(f"peer{number}")),
        st.sampled_from(["sent", "received"]),
        st.integers(3, 8),
        st.sampled_from([part(0), call(1), wire.Give(0, 1, (), (), ()), wire.Have(0, 1, 0, NO_DIGEST)]),
        st.sampled_from(["training", "matching", "reducing"]),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 40))
def test_whatever_comes_a_round_stays_small_and_no_message_is_lost(
    steps: list[tuple[PeerId, str, int, Any, str]], times: int
) -> None:
    timeline, expected = at_work(), 0
    for repeat in range(times):
        for number, (peer, way, round, like, phase) in enumerate(steps):
            message = type(like)(**{name: getattr(like, name) for name in like.__match_args__} | {"round": round})
            sender = PeerId(f"{peer}-{repeat}-{number}")
            (timeline.sent if way == "sent" else timeline.received)(12.0, sender, message)
            timeline.told(12.0, Blamed(sender, "lies"))
            timeline.observe(12.0, phase, 5)
            expected += round == 5
    trace = timeline.current
    assert trace is not None
    assert sum(flow.count for flow in trace.flows.values()) == expected
    assert len(trace.flows) <= MOST_FLOWS + 8  # and a line for the others, of each way and kind
    assert len(trace.events) <= MOST_EVENTS
    assert len(trace.phases) <= MOST_PHASES


def test_who_is_over_the_bound_is_counted_with_the_others() -> None:
    timeline = at_work()
    for number in range(MOST_FLOWS + 10):
        timeline.received(12.0 + number, PeerId(f"peer{number}"), call(5))
    timeline.received(9999.0, PeerId("peer0"), call(5))
    trace = timeline.current
    assert trace is not None
    assert trace.flows["received", "call", OTHERS].count == 10
    assert trace.flows["received", "call", PeerId("peer0")].count == 2
    assert len(json.dumps(as_json(trace, ME, 0.0, 0.0))) < 200_000


def test_each_field_is_documented_and_what_the_documents_show_has_all() -> None:
    docs = Path(__file__).parents[2] / "docs"
    fields = as_json(Trace(5, [("matching", 1.0)]), ME, 2.0, 2.0)
    told = json.loads((docs / "round.json").read_text(encoding="utf-8"))
    assert all(each.keys() == fields.keys() | {"run", "name"} for each in told)
    assert TIMELINE.keys() == fields.keys()
    table = (docs / "rounds.md").read_text(encoding="utf-8").partition("## The fields")[2]
    named = [
        name for line in table.splitlines() if line.startswith("| `") for name in line.split("|")[1].split("`")[1::2]
    ]
    assert set(named) == fields.keys() | {"run", "name"}
