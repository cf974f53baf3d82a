"""Looks up runs in the DHT that we are not in: who is in them, and which are public.

All of it is hearsay, signed only by its author: a genesis is checked against the run's id, and whether a run is public
follows from its manifest, not from an announcement.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from shoal.dht.directory import read_entry
from shoal.dht.effects import Found
from shoal.dht.keys import PUBLIC_RUNS, run_key
from shoal.dht.link import format_link
from shoal.node.api.answers import PublicRun
from shoal.node.peers.discovery import Discovery
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId
from shoal.protocol.messages.dht import Contact
from shoal.protocol.messages.directory import MemberEntry, RunNotice

MAX_NAME = 64  # characters, as in a manifest
MAX_LISTED = 100  # runs

log = logging.getLogger("shoal.daemon")


async def providers(discovery: Discovery, run: RunId) -> list[Contact]:
    """The peers that say that they are in a run."""
    found = (await discovery.get(run_key(run))).found
    contacts = [Contact(each.record.author, discovery.worth_dialling(_addresses(each))) for each in found]
    return [each for each in contacts if each.addresses]


async def public_runs(discovery: Discovery) -> list[PublicRun]:
    """The runs that were announced, those with most members first; LocalError if no DHT server is known."""
    if not discovery.contacts():
        raise LocalError(
            "this node knows no other that could tell it of public runs: connect it with one first, by a run's link "
            "or by the address of any running node",
            code="alone",
        )
    notices: dict[RunId, list[RunNotice]] = {}
    for each in (await discovery.get(PUBLIC_RUNS)).found:
        entry = read_entry(each)
        if isinstance(entry, RunNotice) and each.record.subkey == entry.run.hex():
            notices.setdefault(entry.run, []).append(entry)
    rows = [_row(run, of_run) for run, of_run in notices.items()]
    ranked = sorted(rows, key=lambda row: (-row["members"], row["run"]))
    if len(ranked) > MAX_LISTED:
        log.info("%d public runs are announced, and the %d with most members are listed", len(ranked), MAX_LISTED)
    return ranked[:MAX_LISTED]


def _addresses(found: Found) -> tuple[str, ...]:
    """The addresses that the author of an entry gives."""
    entry = read_entry(found)
    return entry.addresses if isinstance(entry, MemberEntry) else ()


def _row(run: RunId, notices: Sequence[RunNotice]) -> PublicRun:
    """One run, from all announcements of it; name, round and members are those of the newest."""
    best = max(notices, key=lambda notice: (notice.round, notice.members))
    return {
        "run": run.hex(),
        "name": best.name[:MAX_NAME],
        "round": best.round,
        "members": best.members,
        "announced_by": len(notices),
        "link": format_link(run, [address for notice in notices for address in notice.addresses]),
    }
