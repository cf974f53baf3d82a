"""Reports: heard as they are told, and nobody else can say them."""

from __future__ import annotations

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.net.bulk.flow_control import RECORD, Report, ReportReader, ReportWriter
from shoal.protocol.net.bulk.framing import PREFIX
from shoal.protocol.net.bulk.sealing import TAG, Sealer
from tests.unit.bulk.kit import KEY


def test_reports_are_heard_as_they_are_told_in_whatever_pieces_they_come() -> None:
    teller, listener = ReportWriter(KEY), ReportReader(KEY)
    told = b"".join(teller.record(report) for report in (Report(1, 0), Report(2, 7), Report(1 << 40, 1 << 33)))
    assert len(told) == 3 * RECORD
    assert listener.heard(told[:5]) is None
    assert listener.heard(told[5 : RECORD + 1]) == Report(1, 0)
    assert listener.heard(told[RECORD + 1 :]) == Report(1 << 40, 1 << 33)


@pytest.mark.parametrize("first", [Report(0, 0), Report(5, 3)])
def test_who_says_the_same_again_wastes_our_time(first: Report) -> None:
    teller, listener = ReportWriter(KEY), ReportReader(KEY)
    if first != Report(0, 0):
        assert listener.heard(teller.record(first)) == first
    with pytest.raises(TransportError, match=r"told .* after"):
        listener.heard(teller.record(first))


@pytest.mark.parametrize("second", [Report(4, 9), Report(9, 2), Report(0, 0)])
def test_totals_that_shrink_are_not_believed_whatever_follows(second: Report) -> None:
    teller, listener = ReportWriter(KEY), ReportReader(KEY)
    with pytest.raises(TransportError, match=r"told .* after"):
        listener.heard(b"".join(map(teller.record, (Report(5, 3), second, Report(10, 10)))))


@pytest.mark.parametrize("way", ["altered", "twice", "out of order", "with the other way's key"])
def test_what_the_other_end_did_not_say_is_not_believed(way: str) -> None:
    teller, listener = ReportWriter(KEY), ReportReader(KEY)
    first, second = teller.record(Report(1, 1)), teller.record(Report(2, 2))
    wrong = {
        "altered": bytes([first[0] ^ 1]) + first[1:],
        "twice": first + first,
        "out of order": second,
        "with the other way's key": bytes(Sealer(KEY).seal(bytes(PREFIX.size), b"", bytes(RECORD - TAG)))[-RECORD:],
    }[way]
    with pytest.raises(TransportError, match="altered"):
        listener.heard(wrong)
