"""Families of experts on pictures: clusters by pixels, a router beside them, and invalid manifests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from shoal.node.diffusion.pictures import Pictures, digits
from shoal.node.experts.founding import check_parts, write_partition
from shoal.node.experts.parts import experts_of, part_manifest
from shoal.node.manifest.data import ClustersSpec
from shoal.node.manifest.manifest import Manifest, decode_manifest, load_manifest, parse_manifest
from shoal.node.manifest.model import RouterSpec
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.data.partition import learn, read
from shoal.protocol.base.errors import LocalError
from shoal.protocol.net.system.identity import Identity

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits_experts.toml"
TEXT = EXAMPLE.read_text()
PIXELS = ClustersSpec(count=2, by="pixels")


def founded(folder: Path, manifest: Manifest) -> tuple[Manifest, Path]:
    file = folder / "partition"
    write_partition(manifest, [], file)
    check_parts(named := with_file(manifest, file), [], file)
    return named, file


def with_file(manifest: Manifest, file: Path) -> Manifest:
    experts = experts_of(manifest).with_file(blake3(file.read_bytes()).hexdigest())
    return manifest.model_copy(update={"experts": experts})


def test_the_parts_cut_the_digits_and_the_router_sees_all_of_them(tmp_path: Path) -> None:
    family, file = founded(tmp_path, load_manifest(EXAMPLE))
    author = Identity.generate().peer
    assert decode_manifest(family.canonical(), author) == family
    *clusters, router = experts_of(family).parts
    sizes, seen = [], list[bytes]()
    for number, part in enumerate(clusters):
        train, held, _ = digits(part_manifest(family, part).data.cluster, file)
        assert part.name == f"cluster-{number}"
        assert set(train.clusters) == set(held.clusters) == {number}
        sizes.append(len(train) + len(held))
        seen += [row.tobytes() for row in train.pixels]
    assert max(sizes) < 1.1 * min(sizes)
    manifest = part_manifest(family, router)
    assert isinstance(manifest.model, RouterSpec)
    corpus = load_corpus(manifest.data, [file])
    assert isinstance(corpus.batches, Pictures)
    assert set(corpus.batches.clusters) == set(range(8))
    assert sorted(seen) == sorted(row.tobytes() for row in corpus.batches.pixels)


def test_random_groups_need_no_file_and_mix_all_classes() -> None:
    family = parse_manifest(TEXT.replace('by = "pixels"', 'by = "random"'))
    check_parts(family, [])
    train, _, _ = digits(part_manifest(family, experts_of(family).parts[0]).data.cluster)
    assert set(train.classes) == set(range(10))


def test_a_partition_of_pixels_is_a_file_that_gives_the_same_answer(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    dark, bright = (rng.integers(low, low + 50, (20, 9), dtype=np.uint8) for low in (0, 200))
    samples = [row.tobytes() for row in np.concatenate((dark, bright))]
    made = learn(samples, [1] * 40, PIXELS)
    made.write(tmp_path / "p")
    labels = read(tmp_path / "p", PIXELS).labels(samples)
    assert np.array_equal(labels, made.labels(samples))
    assert set(labels[:20]) != set(labels[20:])
    with pytest.raises(LocalError, match="of pictures of 9 pixels"):
        read(tmp_path / "p", PIXELS).labels([bytes(16)])
    with pytest.raises(LocalError, match="weights of its words"):
        read(tmp_path / "p", ClustersSpec(count=2))


ROUTER = TEXT[TEXT.index("[[experts.parts]]") :]


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (TEXT.replace(ROUTER, ""), "one router"),
        (TEXT.replace("experts = 8", "experts = 7"), "knows 7 clusters, and there are 8"),
        (TEXT.replace('by = "pixels"', 'by = "words"'), "clusters of digits"),
        (
            TEXT + "side = 9\n" if "side" not in ROUTER else TEXT.replace(ROUTER, ROUTER.replace("8", "9", 1)),
            "one size",
        ),
        (TEXT.replace("side = 8", "side = 9"), "8 pixels a side and 10 classes, and the model has 9 and 10"),
        (TEXT.replace("classes = 10", "classes = 12"), "and the model has 8 and 12"),
        (TEXT.replace('name = "router"\n\n', 'name = "cluster-3"\n\n'), "cluster-3"),
        (TEXT.replace('[model]\nname = "flow"', '[model]\nname = "router"'), "of kind flow"),
        (TEXT.replace('name = "router"\nside', 'name = "hf"\nside'), "must be one of llama, flow, router"),
    ],
)
def test_what_cannot_be_a_family_of_pictures_is_refused(manifest: str, why: str) -> None:
    with pytest.raises(LocalError, match=why):
        parse_manifest(manifest)
