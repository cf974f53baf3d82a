"""`[trust]` of a manifest: what it says goes into the register, and what is not built yet is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.manifest.manifest import MAX_MANIFEST, decode_manifest, parse_manifest
from shoal.node.run.facts import run_facts
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import NO_DIGEST, Digest
from shoal.protocol.log.trust import Crash
from shoal.protocol.net.system.identity import Identity
from tests.run_kit import AUTHOR, id_of

ANNA, BERT = (Identity.of_seed(name.ljust(32)).peer for name in (b"anna", b"bert"))
EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = 'name = "a"\n[trust]\n'


def test_the_register_has_what_the_manifest_says() -> None:
    manifest = parse_manifest(f'{HEAD}stewards = ["{ANNA}", "{BERT}"]\nvoters = 5\nfaults = "crash"')
    assert decode_manifest(manifest.canonical()) == manifest
    facts = run_facts(manifest, id_of(manifest), AUTHOR.peer, seeded=NO_DIGEST, chunks=(1,))
    register = facts.register()
    assert (register.author, register.stewards, register.most_voters) == (AUTHOR.peer, (ANNA, BERT), 5)
    assert facts.trust == Crash()
    assert (register.most_faults, register.branch) == (0, Digest(id_of(manifest)))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('faults = "byzantine"', "'trust.faults'.*'byzantine' is not built yet"),
        ('admission = "invite"', "'trust.admission'.*'invite' is not built yet"),
        ('continue_after = "7 days"', "'trust.continue_after'.*no duration"),
        ('continue_after = "5s"', "'trust.continue_after'.*too soon"),
        ("continue_after = 60", "'trust.continue_after'"),
        ('faults = "none"', r"'trust\.faults' is \"none\"; it must be"),
        ("voters = 0", "trust.voters"),
        ("voters = 33", "trust.voters"),
        ('stewards = ["anna"]', "'anna' is no peer"),
        (f'stewards = ["{ANNA}", "{ANNA}"]', "named twice"),
        ('author = "me"', "unknown key 'trust.author'"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(line: str, expected: str) -> None:
    with pytest.raises(LocalError, match=expected):
        parse_manifest(HEAD + line)


def test_a_family_decides_nothing_by_votes() -> None:
    family = (EXAMPLES / "experts.toml").read_text()
    with pytest.raises(LocalError, match="leave it out"):
        parse_manifest(f"{family}\n[trust]\nvoters = 3")
    assert parse_manifest(f"{family}\n[trust]\nvoters = 32").trust.voters == 32


def test_all_stewards_have_room() -> None:
    names = ", ".join(f'"{Identity.of_seed(bytes([number]) * 32).peer}"' for number in range(33))
    with pytest.raises(LocalError, match=r"trust\.stewards"):
        parse_manifest(f"{HEAD}stewards = [{names}]")
    most = parse_manifest(f"{HEAD}stewards = [{names.rpartition(',')[0]}]")
    assert len(most.trust.stewards) == 32
    assert len(most.canonical()) < MAX_MANIFEST
