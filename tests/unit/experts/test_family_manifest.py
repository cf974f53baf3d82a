"""A family's manifest: what it says, what is refused, and the runs of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from blake3 import blake3

from shoal.node.experts.founding import check_parts, write_partition
from shoal.node.experts.parts import OWN, PARTITION, SEED, common, last_round, own_seeds, part_manifest, seed_of
from shoal.node.manifest.data import ClustersSpec
from shoal.node.manifest.experts import MAX_PARTS, MAX_SEEDS
from shoal.node.manifest.manifest import Manifest, decode_manifest, load_manifest, parse_manifest
from shoal.node.training.data.selection import groups_of
from shoal.node.training.data.texts import Text
from shoal.protocol.base.errors import LocalError
from tests.run_kit import id_of
from tests.unit.experts.family_kit import FAMILY, TEXT

EXAMPLES = Path(__file__).parents[3] / "examples"
CLUSTERS = TEXT.partition("[[experts.parts]]")[0] + "[experts.clusters]\ncount = 3\n"


def test_it_survives_the_wire() -> None:
    assert decode_manifest(FAMILY.canonical()) == FAMILY


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
        assert decode_manifest(run.canonical()) == run
    assert net.data.only == ("asyncio/*",)
    assert net.seed == FAMILY.seed
    assert id_of(net) != id_of(text)


def test_only_parts_of_the_seeds_model_begin_with_the_seed() -> None:
    assert FAMILY.experts is not None
    net, text = FAMILY.experts.parts
    assert seed_of(FAMILY, net) is None
    table = FAMILY.model_dump()
    origin = dict.fromkeys(("run", "history", "root"), "ab" * 32) | {"round": 3, "samples": 5}
    seeded = Manifest.model_validate(table | {"origin": origin})
    assert seed_of(seeded, net) == SEED
    assert seed_of(seeded, text) is None
    assert last_round(seeded, net) == 10, "an expert's rounds are counted from its own beginning"


def seed(file: int, tokens: int) -> str:
    return f'seed = {{ file = "{file:064x}", tokens = {tokens} }}\n'


def models(count: int) -> str:
    """A family of so many parts with models of their own, each model another one, and a last part of the first."""
    head, sizes = TEXT.partition("[[experts.parts]]")[0], [*range(1, count + 1), 1]
    table = "[experts.parts.model]\ndim = 16\nlayers = 1\nheads = 2\nkv_heads = 1\ncontext = 16\nhidden"
    return head + "".join(
        f'[[experts.parts]]\nname = "p{place}"\nonly = ["{place}"]\n{seed(size, size)}{table} = {8 * size}\n'
        for place, size in enumerate(sizes)
    )


def test_parts_of_one_model_have_one_seed_which_is_one_file() -> None:
    family = parse_manifest(models(2))
    assert family.experts is not None
    first, second, third = family.experts.parts
    assert own_seeds(family) == {f"{OWN}0": first, f"{OWN}1": second}
    assert common(family) == (SEED, PARTITION, f"{OWN}0", f"{OWN}1")
    assert [seed_of(family, part) for part in (first, second, third)] == [f"{OWN}0", f"{OWN}1", f"{OWN}0"]
    assert decode_manifest(family.canonical()) == family


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (models(MAX_SEEDS + 1), f"parts have {MAX_SEEDS + 1} seeds of their own, over {MAX_SEEDS}"),
        (models(2).replace(seed(2, 2), seed(1, 1)), "the seed of the part p1 is that of a part with another"),
        (TEXT.partition("[experts.parts.model]")[0] + seed(1, 1), "the part text has a seed but no model of its own"),
    ],
)
def test_seeds_that_cannot_be_are_refused(text: str, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        parse_manifest(text)


def test_manifests_without_experts_keep_their_ids() -> None:
    assert b"experts" not in Manifest(name="golden").canonical()
    assert b"only" not in Manifest(name="golden").canonical()


@pytest.mark.parametrize(("name", "lasts"), [("experts", {20}), ("hdee", {14})])
def test_the_examples_are_families_whose_parts_all_have_text(name: str, lasts: set[int]) -> None:
    example = load_manifest(EXAMPLES / f"{name}.toml")
    assert example.experts is not None
    assert {part_manifest(example, part).rounds.last for part in example.experts.parts} == lasts
    check_parts(example, [])


def test_the_example_of_groups_is_cut_by_what_its_founder_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load_manifest(EXAMPLES / "clusters.toml")
    assert example.experts is not None
    assert [part.name for part in example.experts.parts] == [f"cluster-{number}" for number in range(4)]
    write_partition(example, [], tmp_path / "partition")
    named = blake3((tmp_path / "partition").read_bytes()).hexdigest()
    calls = list[int]()

    def counted(texts: Sequence[Text], groups: ClustersSpec, file: Path | None) -> list[int]:
        calls.append(len(texts))
        return groups_of(texts, groups, file)

    monkeypatch.setattr("shoal.node.training.data.selection.groups_of", counted)
    check_parts(example.model_copy(update={"experts": example.experts.with_file(named)}), [], tmp_path / "partition")
    assert len(calls) == 1, "all texts are read once, however many parts there are"


def test_groups_are_parts_though_none_is_listed() -> None:
    family = parse_manifest(CLUSTERS + '[[experts.parts]]\nname = "cluster-1"\nsteps = 80\n')
    assert family.experts is not None
    assert [(part.name, family.experts.steps_of(part)) for part in family.experts.parts] == [
        ("cluster-0", 40),
        ("cluster-1", 80),
        ("cluster-2", 40),
    ]
    run = part_manifest(family, family.experts.parts[1])
    assert run.data.cluster is not None
    assert (run.data.cluster.number, run.data.cluster.groups) == (1, family.experts.clusters)
    for manifest in (family, run):
        assert decode_manifest(manifest.canonical()) == manifest


def test_a_named_partition_is_still_the_family_that_was_asked_for() -> None:
    family = parse_manifest(CLUSTERS)
    assert family.experts is not None
    named = family.model_copy(update={"experts": family.experts.with_file("ab" * 32)})
    assert named.completes(family)
    assert not family.completes(parse_manifest(CLUSTERS.replace("count = 3", "count = 4")))
    assert id_of(named) != id_of(family)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            '[[experts.parts]]\nname = "net"\n',
            "the part net is not one of clusters, and no router: the clusters are clu",
        ),
        ('[[experts.parts]]\nname = "cluster-0"\nonly = ["a"]\n', "the part cluster-0 has patterns, and the clusters"),
        ('[[experts.parts]]\nname = "cluster-1"\n' * 2, "two parts are named cluster-1"),
        ("[[experts.parts]]\nname = {a = 1}\n", "experts.parts.3.name"),
        ('by = "random"\nfile = "' + "ab" * 32 + '"\n', 'groups by = "random" need no file'),
        ('by = "colour"\n', "experts.clusters.by"),
    ],
)
def test_groups_that_cannot_be_are_refused(more: str, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        parse_manifest(CLUSTERS + more)


def test_families_without_clusters_keep_their_ids() -> None:
    assert b"cluster" not in FAMILY.canonical()
