"""Data cut into parts by similarity: even, reproducible, and defined for samples that come later."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.node.training.data.clusters import assign, cluster, nearest
from shoal.node.training.data.partition import LENGTH, idf_of, tf_idf, word_counts

RECIPES = [
    b"flour butter sugar oven bake the dough until golden, and butter",
    b"bake bread flour oven yeast dough",
]
BOATS = [b"the harbour anchor sail mast and rudder of the boat", b"sail against the wind, boat and mast, anchor"]


def blobs(seed: int, sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    points = [rng.normal(10.0 * each, 1.0, (size, 3)) for each, size in enumerate(sizes)]
    return np.concatenate(points), np.repeat(np.arange(len(sizes)), sizes)


def test_groups_that_are_apart_are_found() -> None:
    points, truth = blobs(1, (40, 40, 40))
    found = cluster(points, 3, seed=0)
    assert sorted(found.sizes) == [40, 40, 40]
    assert all(len(set(truth[found.labels == each])) == 1 for each in range(3))
    assert found.iterations < 30


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_even_where_the_data_are_not(seed: int) -> None:
    points, _ = blobs(seed, (80, 30, 11))
    assert max(cluster(points, 4, seed).sizes) <= 31
    assert max(cluster(points, 4, seed, balanced=False).sizes) > 31


def test_the_same_seed_gives_the_same_groups() -> None:
    points, _ = blobs(2, (30, 30))
    first, second = (cluster(points, 5, seed=7) for _ in range(2))
    assert np.array_equal(first.labels, second.labels)
    assert first.centres.tobytes() == second.centres.tobytes()


def test_a_sample_that_comes_later_belongs_to_the_nearest() -> None:
    points, _ = blobs(3, (20, 20))
    found = cluster(points, 2, seed=1)
    later = nearest(points + 0.01, found.centres)
    assert np.array_equal(later, found.labels)


def test_who_would_lose_most_chooses_first_and_nobody_is_left_out() -> None:
    cost = np.array([[0.0, 1.0], [0.0, 9.0], [0.0, 5.0], [2.0, 3.0]])
    assert assign(cost, room=2).tolist() == [1, 0, 0, 1]
    assert sorted(set(assign(np.array([[0.0, 9.0, 9.0]] * 5), room=5))) == [0, 1, 2]


@pytest.mark.parametrize(("n", "k"), [(0, 1), (3, 4), (5, 0)])
def test_too_few_samples_are_refused(n: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"cannot make {k} groups"):
        cluster(np.arange(n, dtype=float)[:, None], k, seed=0)


def test_equal_samples_are_one() -> None:
    with pytest.raises(ValueError, match="not all different"):
        cluster(np.ones((10, 2)), 2, seed=0)


def test_texts_on_one_subject_lie_together() -> None:
    table = word_counts([*RECIPES, *BOATS])
    points = tf_idf(table, idf_of(table))
    found = cluster(points, 2, seed=0)
    assert found.labels[0] == found.labels[1] != found.labels[2] == found.labels[3]
    later = tf_idf(word_counts([b"an oven for bread and butter"]), idf_of(table))
    assert nearest(later, found.centres)[0] == found.labels[0]


def test_a_text_without_words_is_no_number_that_spoils_others() -> None:
    table = word_counts([b"", b"1 2 3", b"butter"])
    points = tf_idf(table, idf_of(table))
    assert np.isfinite(points).all()
    assert np.linalg.norm(points, axis=1).tolist() == pytest.approx([0, 0, LENGTH], rel=1e-3)
