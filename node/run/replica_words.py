"""Why a round of a replica had no exchange, in words for people."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.protocol.replicas.events import Lapse

WORDS: Mapping[str, str] = {
    Lapse.ALONE: "nobody else who trains is here",
    Lapse.BYE: "the others are pairs without this node",
    Lapse.NOBODY_LEFT: "whom it would have met declined, was lost, or did not come in time",
    Lapse.BEHIND: "most others are rounds ahead, and nobody is left to meet in between",
}


def why_lapsed(reason: str) -> str:
    """The words for a reason; the reason itself if it is a newer one."""
    return WORDS.get(reason, reason)
