"""What late payloads are made from: contributions until they are withdrawn, and versions of the state."""

from __future__ import annotations

from shoal.node.run.payload_sources import PayloadSources
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.messages.averaging import Contribution, Made, Mean
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.messages.transfer import StateChunk
from tests.simulation.versions import Versions

VERSION = 7


def contribution(round: int, chunk: int = 0) -> Contribution:
    return Contribution(0, round, chunk, 0, 10, NO_DIGEST, b"")


def submitted(round: int, name: bytes = b"ours") -> PayloadSources:
    sources = PayloadSources(Versions())
    sources.submit(round, lambda chunk: b"%s %d" % (name, chunk))
    return sources


def test_a_contribution_is_made_of_what_was_submitted() -> None:
    sources = submitted(5)
    for message in (contribution(5, 3), Chunk(5, 1, 3, b"")):
        late = sources.late(message)
        assert late.is_wanted()
        assert late.make() == b"ours 3"


def test_what_is_withdrawn_is_wanted_no_more_and_what_is_queued_later_is() -> None:
    sources = submitted(5)
    queued = [sources.late(contribution(5, chunk)) for chunk in range(3)]
    sources.withdraw(0, 4)
    sources.withdraw(1, 5)
    assert all(late.is_wanted() for late in queued)
    sources.withdraw(0, 5)
    assert not any(late.is_wanted() for late in queued)
    again = sources.late(Chunk(5, 2, 0, b""))
    assert again.is_wanted(), "it is for another partner in the same round"
    assert not any(late.is_wanted() for late in queued)


def test_what_was_queued_keeps_its_source() -> None:
    """The same round may come again, on another state."""
    sources = submitted(5, b"first")
    queued = sources.late(contribution(5))
    sources.submit(5, lambda chunk: b"second")
    assert (queued.make(), sources.late(contribution(5)).make()) == (b"first 0", b"second")


def test_nothing_is_made_of_what_is_not_there_or_forgotten() -> None:
    sources = submitted(5)
    queued = sources.late(contribution(5))
    assert not sources.late(contribution(6)).is_wanted()
    sources.forget()
    assert not queued.is_wanted()
    assert sources.contribution(5) is None
    assert not sources.late(contribution(5)).is_wanted()


def test_a_chunk_of_the_state_is_empty_if_its_version_goes_while_it_waits() -> None:
    versions = Versions({VERSION: [b"zero", b"one"]})
    sources = PayloadSources(versions)
    late = sources.late(StateChunk(0, VERSION, 1, b""))
    sources.withdraw(0, VERSION)
    assert late.is_wanted(), "it is no contribution"
    assert late.make() == b"one"
    versions.states.clear()
    assert late.make() == b""


class _Disk:
    """Has one mean, or fails."""

    def __init__(self, held: bytes | None) -> None:
        self.held, self.fails = held, False

    def payload(self, round: int, hash: Digest) -> bytes | None:
        if self.fails:
            raise OSError("no disk")
        return self.held


def test_a_mean_of_an_earlier_round_is_read_when_its_turn_comes_and_not_sent_if_it_is_gone() -> None:
    disk, mean = _Disk(b"bytes"), Mean(0, 3, 0, Made(NO_DIGEST, b"\x01", 0, PeerId("A"), 1, b""), b"")
    late = PayloadSources(Versions(), disk).late(mean)
    assert late.is_wanted()
    assert late.make() == b"bytes"
    disk.held = None
    assert not late.is_wanted()
    disk.fails = True
    assert not late.is_wanted()
    assert not PayloadSources(Versions()).late(mean).is_wanted()
