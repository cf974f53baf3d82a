"""A family's records in the DHT: what its members write about the parts, and their addresses.

Rules:
- Under the family's run key each author has one record for each part that it has something to say about. It lives
  LIFETIME. A claim is renewed much sooner (claims.py); a record that we have a file is written again when it has
  changed or is old.
- As for any run, members can be found under that key, and the manifest under its own key; a public family is listed.
- A node that knows no DHT server, or has no connections while no server answers, is alone: then nothing is unread.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from shoal.dht.directory import LIFETIME, MEMBER, RENEW_EVERY, read_entry
from shoal.dht.keys import PUBLIC_RUNS, manifest_key, run_key
from shoal.dht.record import MAX_VALUE
from shoal.node.experts.view import PartRecord
from shoal.node.manifest.manifest import Manifest
from shoal.node.peers.discovery import Discovery
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.base.ids import NO_DIGEST, Digest, RunId
from shoal.protocol.base.multiaddrs import shortlist
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.messages.directory import ManifestEntry, MemberEntry, PartEntry, RunNotice
from shoal.protocol.net.peers.network import Network

SUBKEY = "part/"  # followed by the part's name
AGREEING = 2  # equal replicas that end a reading
ADDRESSES = 8
WITHDRAWN = 60.0  # seconds that the empty record lives which withdraws another
GOODBYE = 1.0  # seconds to withdraw all records
AGAIN = 2.0  # seconds until a record that no server took is written again

log = logging.getLogger("shoal.dht")


class Board:
    """The records of one family."""

    def __init__(self, family: Manifest, run: RunId, discovery: Discovery, network: Network) -> None:
        self._family, self._run = family, run
        self._discovery, self._network = discovery, network
        self._written: dict[tuple[Digest, str], None] = {}
        self._present_at = 0.0  # when our presence is to be announced next

    @property
    def is_alone(self) -> bool:
        """Whether there is no DHT server and no peer to ask."""
        return not self._discovery.contacts() and not self._network.links()

    async def read(self) -> list[PartRecord] | None:
        """All entries that were found; None if no server has answered, which says nothing about the entries."""
        if not self._discovery.contacts():
            return [] if self.is_alone else None
        try:
            got = await self._discovery.get(run_key(self._run), quorum=AGREEING)
        except ShoalError as error:
            log.info("the directory of %s cannot be read: %s", self._family.name, error)
            return None
        listed = []
        for found in got.found:
            record, entry = found.record, read_entry(found)
            if record.subkey.startswith(SUBKEY) and not record.value:
                entry = PartEntry((), 0, None, 0, None, None, None)  # withdrawn
            if record.subkey.startswith(SUBKEY) and isinstance(entry, PartEntry):
                listed.append(PartRecord(record.author, record.sequence, record.subkey.removeprefix(SUBKEY), entry))
        return listed if got.answers or not self._network.links() else None

    async def write(self, part: str, entry: PartEntry | None) -> bool:
        """Write our entry about a part, or withdraw it (None). Returns whether any server holds it."""
        slot = run_key(self._run), f"{SUBKEY}{part}"
        if entry is None:
            self._written.pop(slot, None)
            return await self._put(*slot, b"", WITHDRAWN)
        return await self._put(*slot, encode(_fitting(entry)))

    async def be_present(self, members: int) -> None:
        """Announce that we are in the family, if that is due; `members` is how many are known, with us."""
        now = asyncio.get_running_loop().time()
        if now < self._present_at or self.is_alone:
            return
        self._present_at = now + AGAIN
        run, addresses = self._run, self.addresses()
        notes: list[tuple[Digest, str, Message]] = [
            (run_key(run), MEMBER, MemberEntry(addresses, 0, NO_DIGEST)),
            (manifest_key(self._family.digest), run.hex(), ManifestEntry(run, addresses)),
        ]
        if self._family.public:
            notes.append((PUBLIC_RUNS, run.hex(), RunNotice(run, self._family.name, 0, members, addresses)))
        if all([await self._put(key, subkey, encode(entry)) for key, subkey, entry in notes]):
            self._present_at = now + RENEW_EVERY

    async def withdraw(self) -> None:
        """Withdraw all our records, as far as that succeeds within GOODBYE."""
        written, self._written = list(self._written), {}
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await asyncio.gather(*(self._put(*slot, b"", WITHDRAWN) for slot in written))

    def addresses(self) -> tuple[str, ...]:
        """Our addresses: first those at which others have reached us, then those of relays."""
        network = self._network
        known = [*self._discovery.verdict.addresses, *network.relayed_addresses, *network.own_addresses()]
        return shortlist(known, ADDRESSES)

    async def _put(self, key: Digest, subkey: str, value: bytes, lifetime: float = LIFETIME) -> bool:
        if not self._discovery.contacts():
            return False
        if value:
            self._written[key, subkey] = None
        try:
            return (await self._discovery.put(key, subkey, value, lifetime)).held > 0
        except ShoalError as error:
            log.info("not in the directory of %s: %s", self._family.name, error)
            return False


def _fitting(entry: PartEntry) -> PartEntry:
    """The entry with as many of its addresses as a record has room for."""
    while len(encode(entry)) > MAX_VALUE and entry.addresses:
        entry = replace(entry, addresses=entry.addresses[:-1])
    return entry
