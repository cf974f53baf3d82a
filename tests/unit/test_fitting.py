"""Whether a run fits into memory, and what would: by arithmetic, for all models and roles in a run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.node.base.room import AvailableMemory, Memory, NoRoom
from shoal.node.manifest.fitting import Load, check_fits, checkpoint_bytes, memory_needs, memory_problem
from shoal.node.manifest.manifest import DataSpec, Manifest, load_manifest, parse_manifest
from shoal.node.manifest.requirements import NODE_BASE, WORKER_BASE, parameters, requirements, vectors_of

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
GIB = 1 << 30
WIDE = parse_manifest('name = "wide"\n[model]\ndim = 4096\nlayers = 32\nhidden = 11008\nheads = 32\nkv_heads = 32\n')

TINY = parse_manifest('name = "tiny"\n[model]\ndim = 16\nlayers = 1\n')


def room(free: int, process: int | None = None) -> AvailableMemory:
    return AvailableMemory(
        Memory(2 * free, free), Memory(process, process, "a process") if process is not None else None
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_it_is_the_sum_of_what_a_preview_says_less_what_is_shared(path: Path) -> None:
    manifest = load_manifest(path)
    if not manifest.model.is_complete:
        pytest.skip("its founder fills it in")
    needed, says = memory_needs(manifest), requirements(manifest, 2)
    shared = 4 * parameters(manifest.model) * vectors_of(manifest).shared
    assert needed.node == pytest.approx(says.node_memory - NODE_BASE, abs=8)
    assert needed.worker == pytest.approx(says.worker_memory - WORKER_BASE - shared, abs=8)
    assert memory_problem(manifest, room(64 * GIB)) == "", "the examples fit on any machine"


def test_what_it_says_would_fit_does_and_more_would_not() -> None:
    free = 100 * GIB
    words = memory_problem(WIDE, room(free))
    found = re.search(r"What would fit: (\d+) such layers", words)
    assert found is not None, words
    layers = int(found[1])
    assert 0 < layers < 32

    def of(layers: int) -> Manifest:
        return WIDE.model_copy(update={"model": WIDE.model.model_copy(update={"layers": layers})})

    check_fits(of(layers), room(free))
    with pytest.raises(NoRoom, match="too large"):
        check_fits(of(layers + 1), room(free))


def test_where_no_layer_fits_narrower_ones_do() -> None:
    words = memory_problem(WIDE, room(GIB))
    narrow = re.search(r"as many layers with dim = (\d+), hidden = (\d+)", words)
    assert narrow is not None, words
    change = {"dim": int(narrow[1]), "hidden": int(narrow[2])}
    check_fits(WIDE.model_copy(update={"model": WIDE.model.model_copy(update=change)}), room(GIB))
    assert change["dim"] % 64 == 0


def test_where_so_many_layers_fit_at_no_width_one_does() -> None:
    shape = "dim = 65536\nlayers = 512\nhidden = 65536\nheads = 512\nkv_heads = 512"
    deep = parse_manifest(f'name = "deep"\n[model]\n{shape}\n')
    words = memory_problem(deep, room(8 * GIB))
    dim = int(re.search(r"one layer with dim = (\d+)", words)[1])  # type: ignore[index]
    assert 0 < dim < 65536


def test_of_other_models_it_says_how_many_parameters() -> None:
    text = 'name = "own"\n[model]\nname = "custom"\ntensors = [{ names = ["w"], shapes = [[100000, 80000]] }]\n'
    manifest = parse_manifest(text + '[data]\nname = "own"')
    words = memory_problem(manifest, room(GIB))
    count = int(re.search(r"a model of at most ([\d,]+) parameters", words)[1].replace(",", ""))  # type: ignore[index]
    assert memory_needs(manifest, count=count).fits(room(GIB))
    assert not memory_needs(manifest, count=count + 1_000_000).fits(room(GIB))


def test_ways_to_be_in_it_with_less() -> None:
    needed = memory_needs(WIDE)
    alone = memory_needs(WIDE, Load(trains=False))
    assert "--no-train, which keeps the state and votes" in memory_problem(WIDE, room(alone.together))
    assert "for its worker" not in memory_problem(WIDE, room(GIB), Load(trains=False))
    little = memory_needs(WIDE, Load(micro_batch=1))
    assert little.step < needed.step
    assert "the same with `shoal node start --micro-batch 1`" in memory_problem(WIDE, room(little.together))
    least = memory_needs(WIDE, Load(micro_batch=1, recompute=True))
    assert least.step < little.step
    offer = "the same with `shoal node start --micro-batch 1 --recompute`"
    assert offer in memory_problem(WIDE, room(least.together))
    assert offer in memory_problem(WIDE, room(least.together), Load(recompute=True))
    smallest = Load(micro_batch=1, recompute=True)
    assert memory_problem(WIDE, room(least.together), smallest) == "", "who has asked for it has it"
    on_gpu = memory_needs(WIDE, Load(has_gpu=True))
    assert (on_gpu.node, on_gpu.weights, on_gpu.moments) == (needed.node, 0, 0)


def test_of_models_of_the_library_only_some_can_recompute() -> None:
    layers = ", ".join(f'"model.layers.{number}.weight"' for number in range(32))
    shape = f"shapes = [{', '.join(['[64, 64]'] * 32)}]"
    config = "config = { model_type = 'llama', hidden_size = 4096 }"
    text = f"name = 'library'\n[model]\nname = 'hf'\ncontext = 512\nvocab = 32000\n{config}"
    manifest = parse_manifest(f"{text}\ntensors = [{{ names = [{layers}], {shape} }}]\n")
    least = memory_needs(manifest, Load(micro_batch=1, recompute=True))
    assert "--recompute`, if models of its type can recompute" in memory_problem(manifest, room(least.together))


def test_a_play_is_told_what_a_play_can_do() -> None:
    """Its peers all train, with a step's whole batch, and are at least two."""
    one, play = memory_needs(WIDE).together, Load(nodes=8, fewest=2)
    assert memory_needs(WIDE, play).together == 8 * one
    words = memory_problem(WIDE, room(5 * one), play)
    assert "What would fit: the same with --peers 5, or " in words
    check_fits(WIDE, room(5 * one), replace(play, nodes=5))
    too_few = memory_problem(WIDE, room(one), play), memory_problem(WIDE, room(3 * one), replace(play, fewest=4))
    assert not any("--peers" in each for each in too_few)
    for said in (words, *too_few):
        assert "such layer" in said
        assert not any(each in said for each in ("--no-train", "--micro-batch", "single"))


def test_each_process_has_its_own_limit() -> None:
    needed = memory_needs(WIDE)
    much = 4 * needed.together
    assert needed.fits(room(much, max(needed.node, needed.worker)))
    assert not needed.fits(room(much, needed.node - 1))
    least = memory_needs(WIDE, Load(micro_batch=1, recompute=True)).worker  # to which it comes down by itself
    assert needed.fits(replace(room(much), process=Memory(least, needed.node, "a process")))
    assert not needed.fits(replace(room(much), process=Memory(least - 1, needed.node, "a process")))
    assert "a process has" in memory_problem(WIDE, room(much, GIB))


def test_a_checkpoint_is_the_state_and_the_moments() -> None:
    assert checkpoint_bytes(WIDE) == 4 * 4 * parameters(WIDE.model)


def test_text_that_was_measured_counts_as_text_that_is_named() -> None:
    files = TINY.model_copy(update={"data": DataSpec(name="files")})
    size = GIB
    whole = DataSpec(name="files", digest="ab" * 32, pieces="cd" * 32, size=size)
    named = TINY.model_copy(update={"data": whole})
    measured = Load(text=size)
    assert memory_needs(files, measured) == replace(memory_needs(named), load=measured)
    assert memory_needs(named, Load(text=7)).step == memory_needs(named).step, "a manifest's word comes first"
    assert memory_needs(files, replace(measured, trains=False)).step == 0
    words = memory_problem(files, room(2 * GIB), measured)
    assert re.search(r"What would fit: .*--no-train.*, or a text of at most [\d.]+ MiB$", words), words
    assert memory_problem(files, room(2 * GIB), Load(text=GIB // 2)) == ""
    assert "a text of at most" in memory_problem(named, room(2 * GIB))
    assert "a text" not in memory_problem(WIDE, room(GIB), measured), "the model alone is too much"
