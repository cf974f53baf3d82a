"""A family's records in the DHT: what its members write about the parts, and their addresses.

Rules:
- Under the family's run key each author has one record for each part of which it has something to say. It lives
  LIFETIME; a claim is written anew much sooner (claims.py), the word that we have a file when it has changed or is old.
- As for any run, members can be found under that key, and the manifest under its own; a public family is announced.
- Who has nobody to ask, or no connection while no server answers, is alone, and has read everything.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from shoal.dht.directory import LIFETIME, MANIFEST, MEMBER, RENEW_EVERY, read_entry
from shoal.dht.keys import PUBLIC_RUNS, manifest_key, run_key
from shoal.dht.record import MAX_VALUE
from shoal.node.experts.view import Listed
from shoal.node.manifest.manifest import Manifest
from shoal.node.peers.discovery import Discovery
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.base.ids import NO_DIGEST, Digest
from shoal.protocol.base.multiaddrs import shortlist
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.messages.directory import ManifestEntry, MemberEntry, PartEntry, RunNotice
from shoal.protocol.net.peers.network import Network

SUBKEY = "part/"  # and the part's name
AGREEING = 2  # replicas, and a reading ends
ADDRESSES = 8
WITHDRAWN = 60.0  # seconds that an empty record lives
GOODBYE = 1.0  # seconds for withdrawing all
AGAIN = 2.0  # seconds until a writing that nobody took is tried again

log = logging.getLogger("shoal.dht")


class Board:
    """One family's."""

    def __init__(self, family: Manifest, discovery: Discovery, network: Network) -> None:
        self._family, self._run = family, family.run_id
        self._discovery, self._network = discovery, network
        self._written: dict[tuple[Digest, str], None] = {}
        self._present_at = 0.0  # when it was last said that we are here

    @property
    def is_alone(self) -> bool:
        """Whether nobody is there who could be asked."""
        return not self._discovery.contacts() and not self._network.links()

    async def read(self) -> list[Listed] | None:
        """All entries that were found; None if nobody has answered, which means nothing."""
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
                entry = PartEntry((), 0, None, 0, None, None, None)  # it was withdrawn
            if record.subkey.startswith(SUBKEY) and isinstance(entry, PartEntry):
                listed.append(Listed(record.author, record.sequence, record.subkey.removeprefix(SUBKEY), entry))
        return listed if got.answers or not self._network.links() else None

    async def write(self, part: str, entry: PartEntry | None) -> bool:
        """Whether any server holds our entry about a part; None withdraws it."""
        slot = run_key(self._run), f"{SUBKEY}{part}"
        if entry is None:
            self._written.pop(slot, None)
            return await self._put(*slot, b"", WITHDRAWN)
        return await self._put(*slot, encode(_fitting(entry)))

    async def be_present(self, members: int) -> None:
        """Say that we are in the family, if that is due; `members` are those whom we see, with us."""
        now = asyncio.get_running_loop().time()
        if now < self._present_at or self.is_alone:
            return
        self._present_at = now + AGAIN
        run, addresses = self._run, self.addresses()
        notes: list[tuple[Digest, str, Message]] = [
            (run_key(run), MEMBER, MemberEntry(addresses, 0, NO_DIGEST)),
            (manifest_key(run), MANIFEST, ManifestEntry(addresses)),
        ]
        if self._family.public:
            notes.append((PUBLIC_RUNS, run.hex(), RunNotice(run, self._family.name, 0, members, addresses)))
        if all([await self._put(key, subkey, encode(entry)) for key, subkey, entry in notes]):
            self._present_at = now + RENEW_EVERY

    async def withdraw(self) -> None:
        """Nothing of what we wrote holds any more; if that is quick."""
        written, self._written = list(self._written), {}
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await asyncio.gather(*(self._put(*slot, b"", WITHDRAWN) for slot in written))

    def addresses(self) -> tuple[str, ...]:
        """Where we are: first where others were seen to reach us, then where relays connect them with us."""
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
