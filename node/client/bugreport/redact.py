"""Takes out of texts what says who somebody is or lets somebody in: keys, tokens, public addresses, names, paths.

Each thing is replaced by the same word wherever it occurs: `public-1` is one address in all files. Words for keys come
from a hash, since the digests of rounds cannot be told from keys, and those of two members are to be compared.
What stays: private, link-local and loopback addresses, PeerIDs, and the first characters of a run's id, by which
`shoal` calls it. In case of doubt something is taken out: a report may lack a word, and must not have one too many.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import pairwise
from urllib.parse import quote

from shoal.protocol.base.multiaddrs import DOCUMENTATION, SITE_LOCAL

SHARED = ip_network("100.64.0.0/10")  # RFC 6598: between a carrier and its customers
NAT64 = ip_network("64:ff9b::/96")
KNOWN_ID = 8  # characters that stay of a known id
KEY = 43  # characters of 32 bytes in base64
SHORTEST_SECRET = 8  # bytes: less is what a damaged file holds, and would be found everywhere
MOST_PARTS = 12  # of an address of IPv6 with a port, and words before it
COMMON_NAMES = {  # of users and machines: they say nothing of anybody, and are words of ours
    *("root", "shoal", "user", "nobody", "daemon", "docker", "node", "runner", "ubuntu", "admin", "app", "localhost"),
    *("worker", "peer", "run", "main", "host", "home", "local", "test", "server", "trainer", "bootstrap", "public"),
}
TOP_LEVEL = (
    "com|org|net|edu|gov|info|io|dev|cloud|ai|app|xyz|me|co|eu|de|at|ch|fr|nl|be|it|es|pt|pl|cz|se|no|fi|dk|ie|uk|us|ca|"
    "mx|br|ar|au|nz|in|cn|jp|kr|tw|hk|sg|ru|ua|tr|za|home|lan|local|internal|arpa"
)
OUR_NAMES = ("shoal.", "libp2p.", "_", "~", "$")  # of loggers, services and folders, which look like names of hosts

PEER_ID = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}|16Uiu2HA[1-9A-HJ-NP-Za-km-z]{45}|Qm[1-9A-HJ-NP-Za-km-z]{44}")
LINK = re.compile(r"(?i)\bshoal[0-9][a-z2-7]{20,}")
PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
BEARER = re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}")
NAMED = re.compile(r"(?i)(\b(?:login|token|password|passwd|secret|api[_-]?key)[\"']?\s*[=:]\s*[\"']?)[\w.~+/=-]{12,}")
VENDORS = re.compile(r"\b(?:hf|gh[a-z]|github_pat|glpat|sk|xox[a-z])[_-][A-Za-z0-9_-]{16,}")
USERS_HOME = re.compile(r"/(?:home|Users)/[^/\s:;,\"'\\)\]}]+")
URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)([^\s/?#\"'<>\\]+)")
MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
NAME_IN_MULTIADDR = re.compile(r"((?:/|%2[fF])(?:dns[46]?|dnsaddr)(?:/|%2[fF]))([^\s/%&\"',\\]+)")
DOTTED_NAME = re.compile(rf"(?<![\w.-])(?:\w(?:[\w-]*\w)?\.)+(?:{TOP_LEVEL})(?![\w-]|\.\w)", re.ASCII | re.IGNORECASE)
IP_6 = re.compile(r"(?<![\w.])[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?")
IP_4 = re.compile(r"(?<!\d)(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\d)")
HEX = re.compile(r"(?:[0-9A-Fa-f]{2}[: -]){31,}[0-9A-Fa-f]{2}|[0-9A-Fa-f]{64,}")
BASE64 = re.compile(rf"[A-Za-z0-9+/_-]{{{KEY},}}={{0,2}}")

Replace = Callable[[re.Match[str]], str]


@dataclass(frozen=True, slots=True)
class Private:
    """What is known of this machine and its node, and is nobody else's business."""

    secrets: tuple[bytes, ...] = ()  # contents of files with secrets
    folders: tuple[tuple[str, str], ...] = ()  # (a path, what stands for it); the first that fits counts
    user: str = ""
    host: str = ""
    ids: frozenset[str] = frozenset()  # in hex: runs and data whose first characters may stay
    hints: tuple[str, ...] = ()  # texts that are not in the report, and may name hosts that are


@dataclass(frozen=True, slots=True)
class Redacted:
    """The texts by their names, without what was private, and how many different things were taken out, by kind."""

    texts: dict[str, str]
    removed: dict[str, int]


def redact(texts: Mapping[str, str], private: Private) -> Redacted:
    """The texts without keys, tokens, public addresses, host names, and names and folders of users."""
    words = _Words()
    names = _names_of_hosts([*private.hints, *texts.values()])
    names |= {name for name in (private.host, private.host.partition(".")[0]) if _is_a_name(name)}
    rules = _rules(private, names, words)
    cleaned = {name: _apply(rules, text) for name, text in texts.items()}
    return Redacted(cleaned, words.counts())


@dataclass(slots=True)
class _Words:
    """The word that stands for each thing, by kind."""

    given: dict[str, dict[str, str]] = field(default_factory=dict)

    def word(self, kind: str, thing: str) -> str:
        """The same word each time; `kind` is also its beginning."""
        known = self.given.setdefault(kind, {})
        return known.setdefault(thing, f"{kind}-{len(known) + 1}")

    def key(self, thing: str) -> str:
        """The same, from a hash: in other reports, too."""
        word = f"key-{sha256(thing.encode(errors='surrogatepass')).hexdigest()[:8]}"
        return self.given.setdefault("key", {}).setdefault(thing, word)

    def replaced(self, kind: str, thing: str, word: str) -> str:
        """Count a thing for which `word` stands."""
        return self.given.setdefault(kind, {}).setdefault(thing, word)

    def counts(self) -> dict[str, int]:
        return {kind: len(things) for kind, things in self.given.items()}


def _apply(rules: Iterable[tuple[re.Pattern[str], Replace]], text: str) -> str:
    for pattern, replace in rules:
        text = pattern.sub(replace, text)
    return text


def _rules(private: Private, hosts: Iterable[str], words: _Words) -> list[tuple[re.Pattern[str], Replace]]:
    """What to look for, and what to put there, in this order: what is most certain first."""
    rules: list[tuple[re.Pattern[str] | None, Replace]] = [
        (LINK, lambda found: words.key(found[0].lower())),
        (_any_of(_spellings(private.secrets)), lambda found: words.word("secret", found[0])),
        (PRIVATE_KEY, lambda found: words.key(found[0])),
        (VENDORS, lambda found: words.word("secret", found[0])),
        (BEARER, lambda found: found[1] + words.word("secret", found[0][len(found[1]) :])),
        (NAMED, lambda found: _named(found, words)),
        *((_path(path), _always(words, "folder", path, word)) for path, word in private.folders),
        (USERS_HOME, lambda found: words.replaced("folder", found[0], "~")),
        (URL, lambda found: found[1] + _host_of_url(found[2], words)),
        (MAIL, lambda found: words.word("mail", found[0].lower())),
        (NAME_IN_MULTIADDR, lambda found: found[1] + _host(found[2], words)),
        (DOTTED_NAME, lambda found: _host(found[0], words)),
        (_any_of(hosts, bounded=True), lambda found: words.word("host", found[0].lower())),
        (HEX, lambda found: _hex(found[0], private.ids, words)),
        (IP_6, lambda found: _ip_6(found[0], words)),
        (IP_4, lambda found: _ip(found[0], words) or found[0]),
        (BASE64, lambda found: _base64(found[0], words)),
    ]
    if _is_a_name(private.user):
        rules.append((_any_of([private.user], bounded=True), lambda found: words.replaced("user", found[0], "user")))
    return [(pattern, replace) for pattern, replace in rules if pattern is not None]


def _is_a_name(name: str) -> bool:
    return len(name) > 2 and name.lower() not in COMMON_NAMES


def _always(words: _Words, kind: str, thing: str, word: str) -> Replace:
    return lambda _: words.replaced(kind, thing, word)


def _any_of(things: Iterable[str], bounded: bool = False) -> re.Pattern[str] | None:
    """Any of these texts, the longest first; `bounded`: only as whole words. None if there is none."""
    found = sorted({each for each in things if each}, key=lambda each: (-len(each), each))
    if not found:
        return None
    any_of = "|".join(map(re.escape, found))
    return re.compile(rf"(?<![\w-])(?:{any_of})(?![\w-])" if bounded else any_of, re.IGNORECASE if bounded else 0)


# -- keys and tokens ------------------------------------------------------------------------------------------------


def _spellings(secrets: Iterable[bytes]) -> Iterator[str]:
    """The texts as which the contents of secret files may be in a log."""
    for secret in {each for content in secrets for each in (content, content.strip()) if len(each) >= SHORTEST_SECRET}:
        yield secret.hex()
        yield secret.hex().upper()
        yield from (encode(secret).decode().rstrip("=") for encode in (b64encode, urlsafe_b64encode))
        yield repr(secret)[2:-1]
        for line in secret.decode(errors="ignore").splitlines():
            if len(line.strip()) >= SHORTEST_SECRET:
                yield from _as_texts(line.strip())


def _as_texts(text: str) -> set[str]:
    """A text as it is, in JSON, in Python and in a URL."""
    return {text, json.dumps(text)[1:-1], repr(text)[1:-1], quote(text)}


def _named(found: re.Match[str], words: _Words) -> str:
    value = found[0][len(found[1]) :]
    looks_secret = any(letter.isdigit() for letter in value) and any(letter.isalpha() for letter in value)
    return found[1] + words.word("secret", value) if looks_secret else found[0]


def _hex(text: str, ids: frozenset[str], words: _Words) -> str:
    plain = re.sub("[: -]", "", text).lower()
    return f"{plain[:KNOWN_ID]}..." if plain in ids else words.key(plain)


def _base64(text: str, words: _Words) -> str:
    """A long run of letters with what looks random in it replaced: all of it, or what is between two slashes."""
    kept, at = [], 0
    for peer in PEER_ID.finditer(text):
        kept += [_without_keys(text[at : peer.start()], words), peer[0]]
        at = peer.end()
    return "".join([*kept, _without_keys(text[at:], words)])


def _without_keys(text: str, words: _Words) -> str:
    if _looks_random(text):
        return words.key(text)
    return "/".join(words.key(part) if _looks_random(part) else part for part in text.split("/"))


def _looks_random(text: str) -> bool:
    """Whether a text is as long as a key, and changes between lower case, upper case and digits as often as one.

    Of two neighbours in base64 that happens in 58 % of cases. Words, paths and names of functions change seldom.
    """
    kinds = ["a" if each.islower() else "A" if each.isupper() else "1" if each.isdigit() else "" for each in text]
    changes = sum(bool(one and other and one != other) for one, other in pairwise(kinds))
    return len(text) >= KEY and changes >= 0.2 * len(text)


# -- folders, hosts and addresses -----------------------------------------------------------------------------------


def _path(path: str) -> re.Pattern[str] | None:
    """A folder, however it is written, not as the beginning of a longer name."""
    if len(path.rstrip("/")) < 2:
        return None
    any_of = "|".join(map(re.escape, sorted(_as_texts(path.rstrip("/")), key=lambda each: (-len(each), each))))
    return re.compile(rf"(?<![\w.-])(?:{any_of})(?![\w-]|\.\w)")


def _names_of_hosts(texts: Iterable[str]) -> set[str]:
    """The names in multiaddrs and URLs that are to be found wherever else they stand: those with a dot."""
    found: set[str] = set()
    for text in texts:
        found |= {match[2] for match in NAME_IN_MULTIADDR.finditer(text)}
        found |= {_host_and_port(match[2])[0] for match in URL.finditer(text)}
    return {name for name in found if "." in name and _address(name) is None and not name.startswith(OUR_NAMES)}


def _host_of_url(text: str, words: _Words) -> str:
    """The part of a URL between `//` and `/` with another host, and without a user and a password."""
    host, port = _host_and_port(text)
    if host.startswith("[") or _address(host) is not None:
        return f"{host}{port}"  # for the rules of addresses
    return f"{_host(host, words)}{port}"


def _host_and_port(text: str) -> tuple[str, str]:
    after_user = text.rpartition("@")[2]
    found = re.fullmatch(r"(.*?)(:\d*)?", after_user, re.DOTALL)
    return (found[1], found[2] or "") if found else (after_user, "")


def _host(name: str, words: _Words) -> str:
    is_no_name = name.lower() == "localhost" or name.lower().startswith(OUR_NAMES)
    if is_no_name or _address(name) is not None or re.fullmatch(r"host-\d+", name):
        return name
    return words.word("host", name.lower())


def _ip_6(text: str, words: _Words) -> str:
    """The text with the longest address in it replaced, if that is public; a port or punctuation may be around it."""
    parts = text.split(":")
    for size in range(min(len(parts), MOST_PARTS), 2, -1):
        for begin in range(len(parts) - size + 1):
            core = ":".join(parts[begin : begin + size])
            if (word := _ip(core.strip("."), words)) is not None:
                word += core[len(core.rstrip(".")) :]
                return ":".join([*parts[:begin], word, *parts[begin + size :]])
    return text


def _ip(text: str, words: _Words) -> str | None:
    """What stands for an address: itself if it is private, and `public-1` if not; None if it is no address."""
    address = _address(text)
    if address is None:
        return None
    plain = _embedded(address) or address
    return text if _is_private(plain) else words.word("public", str(plain))


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that is a part of one of IPv6: mapped, compatible, of NAT64, 6to4 or Teredo."""
    if isinstance(address, IPv4Address):
        return None
    if address in NAT64 or 0xFFFF < int(address) <= 0xFFFF_FFFF:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _is_private(address: IPv4Address | IPv6Address) -> bool:
    if any(address in network for network in DOCUMENTATION):
        return False
    is_shared = address in SHARED or address in SITE_LOCAL
    return address.is_private or address.is_multicast or is_shared
