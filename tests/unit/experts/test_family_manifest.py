"""A family's manifest, what is refused of it, and the runs of its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.corpus import check_parts
from shoal.node.experts.parts import has_seed, last_round, part_manifest
from shoal.node.experts.spec import MAX_PARTS
from shoal.node.manifest import Manifest, decode_manifest, load_manifest, parse_manifest
from shoal.protocol.errors import LocalError
from tests.unit.experts.family_kit import FAMILY, TEXT


def test_it_survives_the_wire() -> None:
    assert decode_manifest(FAMILY.canonical(), FAMILY.run_id) == FAMILY


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('only = ["asyncio/*"]', "only = []", 'the part net has no data: give it patterns, as only = \\["net/\\*"\\]'),
        ('only = ["asyncio/*"]', "", "the part net has no data"),
        ('name = "text"', 'name = "NET"', "two parts are named net"),
        ('only = ["asyncio/*"]', 'onyl = ["a"]', "unknown key 'experts.parts.0.onyl'; .* 'experts.parts.only'"),
        ("publish_every", "publish_evry", "nearest known key is 'experts.publish_every'"),
        ("steps = 20\n", "steps = 21\n", "part text has 21 steps, which are no whole rounds"),
        ('name = "net"', 'name = "../net"', "experts.parts.0.name"),
        ('name = "experts"', 'name = "diloco"', 'comes with method.name = "experts"'),
        ("inner_steps = 4", "inner_steps = 4\nouter_lr = 0.7", "with experts `outer_lr` is always 1"),
        ("[experts]", "[rounds]\nlast = 4\n[experts]", "rounds.last of an expert follows from its steps"),
        ("[experts]", '[data]\nonly = ["a"]\n[experts]', "`only` of each part says which"),
        ("[experts.parts.model]", '[experts.parts.model]\nname = "hf"', "experts.parts.1.model.name"),
    ],
)
def test_what_is_refused_and_in_which_words(before: str, after: str, words: str) -> None:
    assert before in TEXT
    with pytest.raises(LocalError, match=words):
        parse_manifest(TEXT.replace(before, after, 1))


def test_a_family_without_parts_or_with_too_many_is_refused() -> None:
    head = TEXT.partition("[[experts.parts]]")[0]
    parts = "".join(f'[[experts.parts]]\nname = "p{each}"\nonly = ["{each}"]\n' for each in range(MAX_PARTS + 1))
    for text in (head, head + parts, 'name = "a"\n[method]\nname = "experts"\n'):
        with pytest.raises(LocalError, match="experts"):
            parse_manifest(text)


def test_a_part_is_an_ordinary_run_of_one() -> None:
    assert FAMILY.experts is not None
    net, text = (part_manifest(FAMILY, part) for part in FAMILY.experts.parts)
    assert (net.name, net.model, net.rounds.last) == ("fam.net", FAMILY.model, 10)
    assert (text.name, text.model, text.rounds.last) == ("fam.text", FAMILY.experts.parts[1].model, 5)
    for run in (net, text):
        assert (run.method.name, run.method.outer_lr, run.method.outer_momentum) == ("diloco", 1.0, 0.0)
        assert (run.rounds.min_members, run.rounds.start_members) == (1, 1)
        assert (run.origin, run.experts, run.public) == (None, None, False)
        assert decode_manifest(run.canonical(), run.run_id) == run
    assert net.data.only == ("asyncio/*",)
    assert net.seed == FAMILY.seed
    assert net.run_id != text.run_id


def test_only_parts_of_the_seeds_model_begin_with_the_seed() -> None:
    assert FAMILY.experts is not None
    net, text = FAMILY.experts.parts
    assert not has_seed(FAMILY, net)
    table = FAMILY.model_dump()
    origin = dict.fromkeys(("run", "history", "root"), "ab" * 32) | {"round": 3, "samples": 5, "nonce": "0" * 32}
    seeded = Manifest.model_validate(table | {"origin": origin})
    assert has_seed(seeded, net)
    assert not has_seed(seeded, text)
    assert last_round(seeded, net) == 10, "an expert's rounds are counted from its own beginning"


def test_manifests_without_experts_keep_their_ids() -> None:
    assert b"experts" not in Manifest(name="golden").canonical()
    assert b"only" not in Manifest(name="golden").canonical()


def test_the_example_is_a_family_whose_parts_all_have_text() -> None:
    example = load_manifest(Path(__file__).parents[3] / "examples" / "experts.toml")
    assert example.experts is not None
    for part in example.experts.parts:
        assert part_manifest(example, part).rounds.last == 10
    check_parts(example.data, [], {part.name: part.only for part in example.experts.parts})
