"""Groups of similar texts as parts: by the founder's file all peers agree, and groups are of even size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from shoal.node.manifest.data import ClusterSpec, ClustersSpec, DataSpec
from shoal.node.training.data.clusters import balancing_handicaps
from shoal.node.training.data.corpus import load_corpus, texts_of_data
from shoal.node.training.data.partition import MAX_FILE, learn, read
from shoal.node.training.data.selection import groups_of
from shoal.node.training.data.texts import Text
from shoal.protocol.base.errors import LocalError

SUBJECTS = ("flour butter sugar oven bread dough", "harbour anchor sail mast rudder boat", "king queen rook pawn")
THREE = ClustersSpec(count=3)


def samples(each: int) -> list[bytes]:
    """Equally many texts on each subject, of different lengths."""
    rng = np.random.default_rng(3)
    return [
        " ".join(rng.choice(subject.split(), int(rng.integers(30, 300)))).encode()
        for subject in SUBJECTS
        for _ in range(each)
    ]


def test_a_file_gives_the_same_groups_and_they_are_the_subjects(tmp_path: Path) -> None:
    texts = samples(20)
    made = learn(texts, [len(text) for text in texts], THREE)
    made.write(tmp_path / "p")
    labels = read(tmp_path / "p", THREE).labels(texts)
    assert np.array_equal(labels, made.labels(texts))
    assert sorted(len(set(labels[20 * each : 20 * each + 20])) for each in range(3)) == [1, 1, 1]
    assert len(set(labels)) == 3
    assert read(tmp_path / "p", THREE).labels(texts[7:8])[0] == labels[7], "it depends on no other text"


def test_a_point_is_made_of_whole_numbers_that_are_exact() -> None:
    made = learn(samples(5), [1] * 15, THREE)
    points = made.features.points([b"butter and oven " * 1000, b""])
    assert np.array_equal(points, np.rint(points))
    assert np.array_equal(made.centres, np.rint(made.centres))
    assert np.abs(points).max() < 1 << 15


@pytest.mark.parametrize("seed", range(3))
def test_handicaps_make_uneven_groups_even(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    cost = rng.uniform(0, 1, (500, 4)) + np.array([0.0, 0.2, 0.5, 0.7])
    weights = rng.uniform(1, 5, 500)
    before = np.bincount(cost.argmin(1), weights, minlength=4)
    after = np.bincount((cost + balancing_handicaps(cost, weights)).argmin(1), weights, minlength=4)
    assert before.max() > 1.5 * before.mean()
    assert after.max() < 1.05 * after.mean()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "p"
    learn(samples(5), [1] * 15, THREE).write(file)
    good = load_file(file)
    for name, value, words in (
        ("centres", good["centres"][:2], "no centres of 3 groups"),
        ("centres", good["centres"] * 100, "would not be exact"),
        ("centres", np.full_like(good["centres"], np.iinfo(np.int32).min), "would not be exact"),
        ("handicaps", np.full_like(good["handicaps"], np.iinfo(np.int64).min), "would not be exact"),
        ("centres", good["centres"].astype(np.float64), "no centres of 3 groups"),
        ("handicaps", good["handicaps"].astype(np.float32), "no handicaps of 3"),
        ("idf", good["idf"][:9], "lacks the weights of its words"),
    ):
        save_file(good | {name: np.ascontiguousarray(value)}, file)
        with pytest.raises(LocalError, match=words):
            read(file, THREE)
    save_torch({name: torch.from_numpy(value).bfloat16() for name, value in good.items()}, file)
    with pytest.raises(LocalError, match="lacks the weights of its words"):
        read(file, THREE)
    save_file(good | {"more": np.zeros(MAX_FILE // 8)}, file)
    with pytest.raises(LocalError, match="more than 16 MiB"):
        read(file, THREE)
    file.write_bytes(b"nothing")
    with pytest.raises(LocalError, match="not the file of a partition"):
        read(file, THREE)


def test_a_part_has_the_texts_of_its_group_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(samples(200)):
        (folder / f"{number}.txt").write_bytes(text)
    whole = texts_of_data(DataSpec(name="files"), [folder])
    learn([text.content for text in whole], [len(text.content) for text in whole], THREE).write(tmp_path / "p")
    groups = THREE.model_copy(update={"file": blake3((tmp_path / "p").read_bytes()).hexdigest()})
    specs = [DataSpec(name="files", cluster=ClusterSpec(groups=groups, number=each)) for each in range(3)]
    corpora = [load_corpus(spec, [folder, tmp_path / "p"]) for spec in specs]
    everything = load_corpus(DataSpec(name="files"), [folder])
    trained = [set(corpus.train.numpy().tobytes().split(b"\0")[:-1]) for corpus in corpora]
    assert set.union(*trained) == set(everything.train.numpy().tobytes().split(b"\0")[:-1])
    assert sum(map(len, trained)) == len(set.union(*trained))
    (tmp_path / "p").write_bytes(b"other bytes")
    with pytest.raises(LocalError, match="is not here, or damaged"):
        load_corpus(specs[0], [folder, tmp_path / "p"])


def test_chance_needs_no_file_and_knows_a_text_by_its_name() -> None:
    groups = ClustersSpec(count=4, by="random", seed=1)
    texts = [Text(f"d/{number}", b"") for number in range(400)]
    labels = groups_of(texts, groups, None)
    assert labels[5:] == groups_of(texts[5:], groups, None)
    assert labels != groups_of(texts, ClustersSpec(count=4, by="random", seed=2), None)
    assert min(labels.count(each) for each in range(4)) > 70


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(LocalError, match="cannot be cut into 3 groups"):
        learn([b"butter", b"sail"], [6, 4], THREE)
