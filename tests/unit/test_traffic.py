"""Bytes are counted by class and path."""

from __future__ import annotations

from shoal.protocol.net.measure.rates import Traffic


def test_payloads_count_by_path_and_words_by_themselves() -> None:
    traffic = Traffic()
    traffic.count(1, 2, None)
    traffic.count(10, 0, "direct")
    traffic.count(0, 20, "relayed")
    traffic.count(100, 0, "punched")
    assert (traffic.control.sent, traffic.control.received) == (1, 2)
    assert (traffic.bulk_sent, traffic.bulk_received) == (110, 20)
    assert (traffic.sent, traffic.received) == (111, 22)
    assert traffic.bulk["relayed"].received == 20
