"""Run links, which a person hands to another to join a run: written, read and checked.

    shoal2 followed by letters and digits, at most 300 characters in all

The 2 is the version. Two letters are the number of letters after them, in base 32, by which a link that was cut off is
known. The rest is base32 (RFC 4648, without padding) of these bytes:

    32   the run's id
    ...  fields: a kind (1), a length (1), and so many bytes. Those of unknown kinds are ignored
           1   an address: the IP address (4 or 16), the TCP port (2)
           2   an address by a relay: the public keys of relay and peer (32 each), the address of the relay as in 1
           3   any other multiaddr, as text
           4   an anchor: the first 8 bytes of a decided entry's digest, and its number without leading zeros
           5   the branch of the log on which that entry is: the first 8 bytes of its digest. Without it that is the
               run's first branch, whose digest is the run's id
    4    the beginning of a digest of id and fields: a letter that was changed is noticed

So it is one word to shells, to chat programs and to a double click, and case does not matter. A change that older nodes
must not ignore needs another version, by which they tell that the link is from a newer Shoal.

The id is the hash of manifest, author and a nonce, so a link cannot lead into another run, whoever answers at its
addresses. By the anchor, which tells how far the log goes at least, it does not lead to an old copy of the run. The
addresses are only a starting point: any node will do that knows the run, or other nodes. Hence a link leaves out
PeerIDs, except where a relay needs them. A link may come from anybody: all of it is checked here, once, before anything
is dialled.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from shoal.dht.link_addresses import is_address, ranked
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, RunId, digest
from shoal.protocol.base.multiaddrs import (
    CIRCUIT,
    NO_NETWORKS,
    OwnNetworks,
    host_and_port,
    is_relayed,
    multiaddr,
    relay_of,
    split,
)
from shoal.protocol.base.peer_ids import KEY_SIZE, key_of_peer, peer_of_key
from shoal.protocol.messages.anchor import ANCHOR_SIZE, Anchor

NAME, VERSION = "shoal", "2"
PREFIX = NAME + VERSION
OLDER = "shoal:", "shoal1"  # how the links of earlier versions begin
LIKE_A_LINK = re.compile(r"shoal(:|[1-9][^./\\]*$)", re.IGNORECASE)  # and not like a path
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
ID_SIZE, CHECK_SIZE, NUMBER_SIZE = 32, 4, 7  # bytes; of a number at most
LENGTH_SIZE = 2  # letters
DIRECT, RELAYED, OTHER, ANCHOR, BRANCH = 1, 2, 3, 4, 5  # kinds of fields
MAX_LINK = 300  # characters
ROOM = (MAX_LINK - len(PREFIX) - LENGTH_SIZE) * 5 // 8 - ID_SIZE - CHECK_SIZE  # bytes for fields
LEAST = 58  # letters of id and check alone
MOST = MAX_LINK - len(PREFIX) - LENGTH_SIZE  # letters: none may name hundreds of hosts, all of which would be dialled
MAX_ADDRESSES = 5  # that we put into one: more make the QR code larger, and joining no likelier
SURROUNDINGS = " \t\r\n<>()\"'`“”‘’«».,;"  # characters that chats and sentences put around a link
SHOWN = 60  # characters that an error quotes

Field = tuple[int, bytes]  # kind and value


@dataclass(frozen=True, slots=True)
class RunLink:
    """A run, addresses of nodes that may know it, and how far its log goes at least."""

    run: RunId
    addresses: tuple[str, ...] = ()
    anchor: Anchor | None = None  # an entry that its log has


def parse_link(text: str) -> RunLink:
    """The link in a text; raises LocalError, in one sentence, if there is none."""
    link = text.strip(SURROUNDINGS)
    if (older := next((each for each in OLDER if link[: len(each)].lower() == each), None)) is not None:
        raise LocalError(
            f"the link is of an older Shoal, as it begins with {older}: update Shoal on the machine that printed it, "
            "and ask for the link that `shoal run link` prints there then",
            code="other-protocol",
        )
    if not looks_like_link(text):
        raise LocalError(
            f"'{_shown(link)}' is no link to a run: that is one word, which begins with {PREFIX}, as `shoal run link` "
            "prints it",
            code="not-a-link",
        )
    if (version := link[len(NAME)]) != VERSION:
        raise LocalError(
            f"the link was made by a newer Shoal (it is of version {version}, and this Shoal reads {VERSION}): update "
            "Shoal on this machine",
            code="other-protocol",
        )
    body = _unpacked(link[len(PREFIX) :].lower())
    fields = list(_fields(body[ID_SIZE:]))
    addresses = (_address(kind, value) for kind, value in fields if kind in (DIRECT, RELAYED, OTHER))
    branch = next((value for kind, value in fields if kind == BRANCH), body[:ANCHOR_SIZE])
    anchors = [_anchor(value, branch) for kind, value in fields if kind == ANCHOR]
    return RunLink(RunId(body[:ID_SIZE]), tuple(dict.fromkeys(addresses)), anchors[0] if anchors else None)


def looks_like_link(text: str) -> bool:
    """Whether this is meant to be a link to a run, whole or not, of whatever version."""
    return LIKE_A_LINK.match(text.strip(SURROUNDINGS)) is not None


def format_link(
    run: RunId, addresses: Sequence[str], networks: OwnNetworks = NO_NETWORKS, anchor: Anchor | None = None
) -> str:
    """The link to a run with the anchor and the best of `addresses`, in the order of `ranked`, as many as fit."""
    anchors = [] if anchor is None else [(ANCHOR, anchor.digest + _packed_number(anchor.number))]
    if anchor is not None and anchor.branch != run[:ANCHOR_SIZE]:
        anchors.append((BRANCH, anchor.branch))
    fields, room = list[Field](), ROOM - sum(len(value) + 2 for _, value in anchors)
    for address in ranked(addresses, networks):
        kind, value = _field(address)
        if len(fields) < MAX_ADDRESSES and len(value) + 2 <= room:
            fields.append((kind, value))
            room -= len(value) + 2
    return encode_link(run, [*fields, *anchors])


def encode_link(run: RunId, fields: Iterable[Field]) -> str:
    """The link to a run with these fields."""
    body = run + b"".join(bytes([kind, len(value)]) + value for kind, value in fields)
    letters = _letters(body + _check(body))
    return PREFIX + ALPHABET[len(letters) >> 5] + ALPHABET[len(letters) & 31] + letters


def left_out(link: str, addresses: Sequence[str], networks: OwnNetworks = NO_NETWORKS) -> list[str]:
    """The addresses of one peer, without its PeerID, for which a link has no room."""
    held = parse_link(link).addresses
    return [each for each in ranked(addresses, networks) if each not in held]


# -- fields -------------------------------------------------------------------------------------------------


def _field(address: str) -> Field:
    """The shortest field for an address."""
    try:
        if not is_relayed(address):
            return DIRECT, _packed(address)
        place, relay = relay_of(address)
        peer = PeerId(split(address)[1])
        return RELAYED, key_of_peer(PeerId(relay)) + key_of_peer(peer) + _packed(place)
    except ValueError:
        return OTHER, address.encode()


def _packed(place: str) -> bytes:
    """An IP address and a port; ValueError if `place` is not exactly that."""
    where = host_and_port(place)
    if where is None or multiaddr(str(where[0]), where[1]) != place:
        raise ValueError(f"{place} is more than an IP address and a port")
    return where[0].packed + where[1].to_bytes(2, "big")


def _address(kind: int, value: bytes) -> str:
    """The multiaddr in a field; LocalError if it is none."""
    try:
        address = value.decode() if kind == OTHER else _unpacked_place(value, is_behind_relay=kind == RELAYED)
    except ValueError:  # a wrong size, or no text
        address = value.hex()
    if not is_address(address):
        raise LocalError(
            f"the link has '{_shown(address)}' for an address: one looks like /ip4/192.0.2.7/tcp/4101",
            code="link-damaged",
        )
    return address


def _unpacked_place(value: bytes, is_behind_relay: bool) -> str:
    names = value[: 2 * KEY_SIZE] if is_behind_relay else b""
    place = value[len(names) :]
    address = multiaddr(str(ip_address(place[:-2])), int.from_bytes(place[-2:], "big"))
    if not is_behind_relay:
        return address
    relay, peer = peer_of_key(names[:KEY_SIZE]), peer_of_key(names[KEY_SIZE:])
    return f"{address}/p2p/{relay}{CIRCUIT}/p2p/{peer}"


def _packed_number(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _anchor(value: bytes, branch: bytes) -> Anchor:
    """The anchor in a field, on this branch; LocalError if it is none."""
    number = value[ANCHOR_SIZE:]
    if not 1 <= len(number) <= NUMBER_SIZE or not number[0] or len(branch) != ANCHOR_SIZE:
        raise LocalError(
            "the link was made wrong: it names no entry of the run's log; ask for another one", code="link-damaged"
        )
    return Anchor(int.from_bytes(number, "big"), value[:ANCHOR_SIZE], branch)


def _fields(data: bytes) -> Iterator[Field]:
    """All fields; LocalError if the last one is not whole."""
    while data:
        size = data[1] if len(data) > 1 else len(data)
        if len(data) < 2 + size:
            raise LocalError(
                "the link was made wrong: its last field is not whole; ask for another one", code="link-damaged"
            )
        yield data[0], data[2 : 2 + size]
        data = data[2 + size :]


# -- letters ------------------------------------------------------------------------------------------------


def _check(body: bytes) -> bytes:
    return digest("run link", body)[:CHECK_SIZE]


def _letters(data: bytes) -> str:
    return b32encode(data).decode().rstrip("=").lower()


def _unpacked(letters: str) -> bytes:
    """Id and fields; LocalError, in one sentence, if letters are missing, added or changed."""
    if strange := next((each for each in letters if each not in ALPHABET), ""):
        raise LocalError(
            f"the link has '{_shown(strange)}' in it, which no link has: copy it again, whole and alone",
            code="link-damaged",
        )
    length, rest = letters[:LENGTH_SIZE], letters[LENGTH_SIZE:]
    data, wanted = _bytes(rest[:MOST]), max(LEAST, _number(length))
    body, check = data[:-CHECK_SIZE], data[-CHECK_SIZE:]
    is_intact = len(body) >= ID_SIZE and check == _check(body) and rest == _letters(data)
    if is_intact and len(rest) == wanted:
        return body
    if not is_intact and len(rest) < wanted:
        whole = len(PREFIX) + LENGTH_SIZE + wanted
        raise LocalError(
            f"the link is cut off: these are {len(PREFIX) + len(letters)} of its {whole} characters; copy it whole",
            code="link-damaged",
        )
    if not is_intact and len(rest) > wanted:
        raise LocalError(
            f"the link has {len(rest) - wanted} characters too many at its end: copy it alone", code="link-damaged"
        )
    raise LocalError("a letter of the link was changed: copy it again, rather than type it", code="link-damaged")


def _bytes(letters: str) -> bytes:
    """The whole bytes in these letters."""
    size, spare = divmod(5 * len(letters), 8)
    return (_number(letters) >> spare).to_bytes(size, "big")


def _number(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number << 5 | ALPHABET.index(letter)
    return number


def _shown(text: str) -> str:
    """The beginning of a wrong text, on one line, for an error."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:SHOWN])
    return plain if len(text) <= SHOWN else f"{plain}..."
