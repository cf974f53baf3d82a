"""A small family for tests, with real signatures: its manifest, its members, cards and entries."""

from __future__ import annotations

from shoal.node.experts.view import PartRecord, View
from shoal.node.manifest.manifest import Manifest, parse_manifest
from shoal.node.manifest.requirements import parameters
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.base.signing import Signer, signed
from shoal.protocol.messages.directory import ExpertCard, PartEntry
from shoal.protocol.net.system.identity import Identity
from tests.run_kit import id_of, unsigned

TEXT = """
name = "fam"
seed = 7
[model]
dim = 32
layers = 1
heads = 2
kv_heads = 1
hidden = 64
context = 32
[method]
name = "experts"
inner_steps = 4
batch = 2
[experts]
steps = 40
publish_every = 2
[[experts.parts]]
name = "net"
only = ["asyncio/*"]
[[experts.parts]]
name = "text"
only = ["json/*", "email/*"]
steps = 20
[experts.parts.model]
dim = 16
layers = 1
heads = 2
kv_heads = 1
hidden = 24
context = 16
"""
FAMILY = parse_manifest(TEXT)
ANNA, BOB, LIAR = (Identity.of_seed(bytes([number]) * 32) for number in (1, 2, 3))
PARTS = ("net", "text")


def signer(who: Identity, family: Manifest = FAMILY) -> Signer:
    return who.signer(id_of(family, BOB.peer))


def size_of(part: str, family: Manifest = FAMILY) -> int:
    """A plausible size, in bytes, of a file of the part."""
    assert family.experts is not None
    spec = family.experts.part(part)
    return 4 * parameters(spec.model if spec is not None and spec.model is not None else family.model) + 500


def card(who: Identity, part: str = "net", round: int = 4, family: Manifest = FAMILY, **changed: object) -> ExpertCard:
    """A card by `who`, signed as it is after the changes."""
    file, root = (digest(f"test {kind}", part.encode(), bytes([round])) for kind in ("file", "root"))
    fields: dict[str, object] = {
        "family": id_of(family, BOB.peer),
        "part": part,
        "round": round,
        "steps": 4 * round,
        "tokens": 100 * round,
        "loss": 3.5,
        "size": size_of(part, family),
        "file": file,
        "root": root,
        "author": who.peer,
        "signature": b"",
    }
    return signed(ExpertCard(**(fields | changed)), signer(who, family))  # type: ignore[arg-type]


def listed(
    who: Identity, part: str = "net", sequence: int = 1, term: int = 0, card: ExpertCard | None = None
) -> PartRecord:
    return PartRecord(who.peer, sequence, part, PartEntry(("/ip4/127.0.0.1/tcp/1",), term, None, 0, None, card, None))


def view(me: Identity = ANNA, family: Manifest = FAMILY, author: PeerId = BOB.peer, lease: float = 60.0) -> View:
    return View(family, unsigned(family, author), PARTS, signer(me, family), lease)


def other(value: Digest) -> Digest:
    """Another digest."""
    return Digest(bytes(each ^ 1 for each in value))
