"""Rates and volumes as people write them: understood, or refused with a hint how to write them."""

from __future__ import annotations

import pytest

from shoal.node.base.home import find_home
from shoal.node.base.options import MIN_PER_DAY, MIN_RATE, NodeSettings, UsageError
from shoal.node.base.quantities import as_rate, as_volume, parse_rate, parse_volume, write_rate, write_volume


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20Mbit", 2_500_000),
        ("20 mbit/s", 2_500_000),
        ("20Mbps", 2_500_000),
        ("2.5MB/s", 2_500_000),
        ("2.5MB", 2_500_000),
        ("1Gbit", 125_000_000),
        ("500kbit", 62_500),
        ("64kbits/s", MIN_RATE),
        ("1MiB/s", 1 << 20),
        ("8000B/s", 8_000),
        ("100000 bytes/s", 100_000),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate("--max-up", text) == rate


@pytest.mark.parametrize("text", ["", "20", "20M", "20Mb", "20Mb/s", "-1Mbit", "1e9bit", "20Mbit20", "nan", "1iB"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-up .*is no rate: .* 20Mbit.* 2\.5MB/s"):
        parse_rate("--max-up", text)


@pytest.mark.parametrize(
    ("text", "volume"),
    [("20GB", 20 * 10**9), ("500 MB", 500 * 10**6), ("1.5TB", 1_500 * 10**9), ("1GiB", 1 << 30), ("100mB", 10**8)],
)
def test_volumes(text: str, volume: int) -> None:
    assert parse_volume("--max-per-day", text) == volume


@pytest.mark.parametrize("text", ["", "20", "20G", "20Gb", "20Gbit", "much"])
def test_what_is_no_volume_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-per-day .*is no volume: .*20GB"):
        parse_volume("--max-per-day", text)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (2_500_000, "20Mbit"),
        (125_000_000, "1Gbit"),
        (8_000, "64kbit"),
        (2_500_001, "2500001B/s"),
        (1 << 20, "1048576B/s"),
    ],
)
def test_a_rate_is_written_as_it_is_read(rate: int, text: str) -> None:
    assert write_rate(rate) == text
    assert parse_rate("--max-up", text) == rate


@pytest.mark.parametrize(("volume", "text"), [(20 * 10**9, "20GB"), (10**8 + 1, "100000001B"), (15 * 10**11, "1500GB")])
def test_a_volume_is_written_as_it_is_read(volume: int, text: str) -> None:
    assert write_volume(volume) == text
    assert parse_volume("--max-per-day", text) == volume


def test_too_little_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 64 kbit/s"):
        parse_rate("--max-up", "63kbit")
    with pytest.raises(UsageError, match="at least 100 MB"):
        parse_volume("--max-per-day", "99MB")
    for wrong in ({"max_up": MIN_RATE - 1}, {"max_down": 0}, {"max_per_day": MIN_PER_DAY - 1}):
        with pytest.raises(UsageError, match="at least"):
            NodeSettings(home=find_home().root, **wrong)  # type: ignore[arg-type]


def test_they_are_said_as_they_are_sold() -> None:
    assert as_rate(2_500_000) == "20 Mbit/s"
    assert as_rate(125_000_000) == "1 Gbit/s"
    assert as_volume(20 * 10**9) == "20 GB"
    assert as_volume(19.5 * 10**6) == "19.5 MB"
    assert as_volume(10**16) == "1e+04 TB"
