"""Whether a router's outside is the internet."""

from __future__ import annotations

import pytest

from shoal.node.peers.gateway.double_nat import detect_double_nat

PUBLIC, OTHER = "203.0.113.7", "198.51.100.2"


@pytest.mark.parametrize(
    ("host", "seen_at", "is_online", "is_confirmed", "is_behind", "words"),
    [
        (None, (OTHER,), True, False, None, ""),  # there is no router to judge
        ("", (), True, False, True, "CGNAT"),
        ("", (), False, False, None, ""),  # it is offline, perhaps
        ("192.168.0.7", (), False, False, True, "another router"),
        ("10.1.2.3", (PUBLIC,), True, False, True, "another router"),
        ("100.64.0.9", (), True, False, True, "CGNAT"),
        ("100.127.255.1", (), True, False, True, "CGNAT"),
        (PUBLIC, (), True, False, None, ""),  # nobody has said anything yet
        (PUBLIC, (PUBLIC,), True, False, False, ""),
        (PUBLIC, (OTHER, PUBLIC), True, False, False, ""),
        (PUBLIC, (), True, True, False, ""),
        (PUBLIC, (OTHER,), True, True, False, ""),  # somebody was there: that counts for more
        (PUBLIC, (OTHER,), True, False, True, OTHER),
        (PUBLIC, ("2001:db8::7",), True, False, None, ""),
    ],
)
def test_what_follows(
    host: str | None, seen_at: tuple[str, ...], is_online: bool, is_confirmed: bool, is_behind: bool | None, words: str
) -> None:
    found = detect_double_nat(host, seen_at, is_online, is_confirmed)
    assert found.is_behind is is_behind
    assert (found.reason is not None) == (is_behind is True)
    assert words in (found.reason or "")
