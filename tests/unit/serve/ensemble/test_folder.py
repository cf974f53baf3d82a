"""A folder of experts as a source: recognised, checked, merged, given a prior, and looked at again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors.torch import save_file

from shoal.node.experts.evaluation import prior_of, scores
from shoal.node.experts.merging import average, pcb
from shoal.node.experts.seeds import seeded
from shoal.node.inference.engine.batch import write
from shoal.node.inference.ensemble.ensemble import Ensemble
from shoal.node.inference.ensemble.folder import write_merge
from shoal.node.inference.scorer import Piece
from shoal.node.inference.served import Choices, Served
from shoal.node.inference.source import open_source
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.checkpoint.read import load
from shoal.node.training.data.vocabulary import ByteVocabulary, TokenizerVocabulary
from shoal.node.training.models.decoder import Llama, build
from shoal.node.training.models.layout import Layout
from shoal.protocol.base.errors import LocalError
from tests.unit.models.test_tokens import tokenizer
from tests.unit.serve.ensemble.kit import OTHER, SMALL, theta, write_experts, write_file
from tests.unit.serve.ensemble.test_ensemble import TOKENS, rows_of
from tests.unit.serve.kit import GREEDY

TEXT = "the quick brown fox jumps over the lazy dog\n" * 9


def opened(folder: Path, **more: Any) -> Served:
    return open_source(folder, Choices(device="cpu", slots=4, threads=1, **more))


def ensemble_of(served: Served) -> Ensemble:
    assert isinstance(served.scorer, Ensemble)
    return served.scorer


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "ensemble.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_experts(tmp_path / "experts", {"a": (1, SMALL), "b": (2, OTHER)}, {"a": 1, "b": 3})


def test_a_folder_of_experts_is_a_source(folder: Path) -> None:
    served = opened(folder)
    assert (served.name, served.scorer.limit, served.scorer.vocab) == ("fam", OTHER.context, 256)
    about = ensemble_of(served).about()
    assert about == {
        "mix": "full",
        "experts": [
            {"name": "a", "prior": 0.25, "answers": True},
            {"name": "b", "prior": 0.75, "answers": True},
        ],
    }
    assert np.isfinite(rows_of(served.scorer)).all()


def swap(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes((folder / "b.safetensors").read_bytes())


def swap_and_say_so(folder: Path) -> None:
    swap(folder)
    edit(folder, lambda table: table["experts"][0].update(blake3=table["experts"][1]["blake3"]))


def infinite(folder: Path) -> None:
    found = write_file(folder / "a.safetensors", theta(1) / 0)
    edit(folder, lambda table: table["experts"][0].update(blake3=found))


def of_another_vocabulary(folder: Path) -> None:
    edit(folder, lambda table: table["experts"][1]["model"].update(vocab=300))


MISTAKES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: edit(folder, lambda table: table.update(experts=[])), "names no experts"),
    (lambda folder: edit(folder, lambda table: table.update(format=2)), "'format'"),
    (lambda folder: edit(folder, lambda table: table.pop("name")), "'name'"),
    (lambda folder: edit(folder, lambda table: table["experts"][0].update(name="b")), "the expert b twice"),
    (
        lambda folder: edit(folder, lambda table: table["experts"][0].update(file="../b.safetensors")),
        "'experts.0.file'",
    ),
    (lambda folder: edit(folder, lambda table: table["experts"][0].update(prior=-1)), "'experts.0.prior'"),
    (lambda folder: edit(folder, lambda table: [each.update(prior=0) for each in table["experts"]]), "above zero"),
    (lambda folder: (folder / "ensemble.json").write_text("{"), "no table of experts"),
    (lambda folder: (folder / "b.safetensors").unlink(), "cannot read the file of the expert b"),
    (lambda folder: (folder / "b.safetensors").write_bytes(b""), "the file of the expert b is empty"),
    (swap, "is not the expert a: its hash is"),
    (swap_and_say_so, "is not of the model"),
    (infinite, "not finite"),
    (of_another_vocabulary, "the expert b knows 300 tokens, and a 256"),
]


@pytest.mark.parametrize(("spoil", "sentence"), MISTAKES)
def test_what_is_wrong_with_a_folder_is_said(folder: Path, spoil: Callable[[Path], object], sentence: str) -> None:
    spoil(folder)
    with pytest.raises(LocalError, match=sentence):
        opened(folder)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"mix": "best"}, "--mix best is unknown"),
        ({"mix": "top-0"}, "--mix top-0 is unknown"),
        ({"mix": "average"}, "a and b have different models"),
        ({"mix": "pcb"}, "different models"),
        ({"base": "5"}, "--base is for --mix pcb"),
        ({"prior": "/nowhere"}, "cannot read the text for the prior"),
        ({"tokenizer": "/nowhere"}, "cannot read the tokenizer"),
    ],
)
def test_what_is_wrong_with_a_choice_is_said(folder: Path, choices: dict[str, str], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        opened(folder, **choices)


def test_choices_for_experts_mean_nothing_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"has no ensemble\.json"):
        opened(tmp_path, mix="full")


def test_a_text_of_one_token_gives_no_prior(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("x")
    with pytest.raises(LocalError, match="no two tokens"):
        opened(folder, prior=str(tmp_path / "short"))


def test_a_larger_vocabulary_needs_a_tokenizer(tmp_path: Path) -> None:
    large = SMALL.model_copy(update={"vocab": 300})
    folder = write_experts(tmp_path / "large", {"a": (1, large)})
    with pytest.raises(LocalError, match="name the one of the family's data with --tokenizer"):
        opened(folder)
    assert opened(folder, tokenizer="bytes").scorer.vocab == 300


def told(folder: Path, **tokens: str) -> None:
    edit(folder, lambda table: table.update(tokens=tokens))


def test_the_table_says_what_a_token_is(folder: Path, tmp_path: Path) -> None:
    wide = SMALL.model_copy(update={"vocab": 300})
    told(write_experts(tmp_path / "wide", {"a": (1, wide)}), kind="bytes")
    assert isinstance(opened(tmp_path / "wide").vocabulary, ByteVocabulary), "of a larger vocabulary than it needs"
    content = tokenizer(folder).read_bytes()
    assert isinstance(opened(folder).vocabulary, TokenizerVocabulary), "a folder that does not say has what lies there"
    given = {"kind": "tokenizer", "name": "tokenizer.json", "end_of_text": "<end>"}
    told(folder, **given, blake3=blake3(content).hexdigest())
    vocabulary = opened(folder).vocabulary
    assert (vocabulary.ends, vocabulary.encode("word3 word4")) == (frozenset({1}), [5, 6])
    (folder / "tokenizer.json").write_bytes(content + b" ")
    with pytest.raises(LocalError, match="is not the tokenizer of these experts"):
        opened(folder)
    assert opened(folder, tokenizer=str(folder / "tokenizer.json")).vocabulary.ends == {1}, (
        "an owner may choose another"
    )
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LocalError, match="name the one of the family's data with --tokenizer"):
        opened(folder)
    (folder / "tokenizer.json").write_bytes(content)
    told(folder, **given | {"end_of_text": "<stop>"})
    with pytest.raises(LocalError, match="'<stop>' is no token"):
        opened(folder)
    told(folder, kind="letters")
    with pytest.raises(LocalError, match="no table of experts"):
        opened(folder)


def test_the_prior_is_that_of_the_evaluation(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    found = ensemble_of(opened(folder, prior=str(tmp_path / "text"))).panel.log_prior
    text = torch.tensor(list(TEXT.encode()))
    models = [build(SMALL, 1), build(OTHER, 2)]
    wanted = prior_of(scores(models, text, OTHER.context - 1))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    assert found.exp().sum() == pytest.approx(1)


# -- merges -------------------------------------------------------------------------------------------------


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    longer = SMALL.model_copy(update={"context": 80})
    return write_experts(tmp_path / "alike", {"a": (1, SMALL), "b": (2, longer)}, {"a": 1, "b": 3})


def model_of(vector: torch.Tensor) -> Llama:
    model = build(SMALL, 0)
    Layout.of(model).load(vector, model)
    return model


def check_is(served: Served, vector: torch.Tensor) -> None:
    with torch.inference_mode():
        wanted = torch.log_softmax(model_of(vector)(torch.tensor([TOKENS[:20]]))[0, -1], -1)
    np.testing.assert_allclose(served.scorer.extend([Piece(0, tuple(TOKENS[:20]))])[0], wanted, atol=1e-4)


def test_the_average_is_by_the_prior(alike: Path) -> None:
    served = opened(alike, mix="average")
    check_is(served, average([theta(1), theta(2)], [1, 3]))
    row = {"name": "average", "prior": 1.0, "answers": True, "made_of": ["a", "b"]}
    assert ensemble_of(served).about() == {"mix": "average", "experts": [row]}
    assert served.scorer.limit == SMALL.context


def test_the_average_is_by_a_prior_that_a_text_gives(alike: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    text = torch.tensor(list(TEXT.encode()))
    prior = prior_of(scores([model_of(theta(1)), model_of(theta(2))], text, SMALL.context - 1)).exp()
    served = opened(alike, mix="average", prior=str(tmp_path / "text"))
    check_is(served, average([theta(1), theta(2)], prior.tolist()))


def test_pcb_is_from_a_seed_or_a_file(alike: Path, tmp_path: Path) -> None:
    wanted = pcb(theta(9), [theta(1), theta(2)])
    check_is(opened(alike, mix="pcb", base="9"), wanted)
    write_file(tmp_path / "model.safetensors", theta(9))
    check_is(opened(alike, mix="pcb", base=str(tmp_path / "model.safetensors")), wanted)
    check_is(opened(alike, mix="pcb", base=str(tmp_path)), wanted)


def test_pcb_without_a_base_or_with_another_models_says_so(alike: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="name a safetensors file, a checkpoint's folder or the seed"):
        opened(alike, mix="pcb")
    save_file({"x": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(LocalError, match="is not of the model"):
        opened(alike, mix="pcb", base=str(tmp_path / "other.safetensors"))
    with pytest.raises(LocalError, match="is not a safetensors file"):
        opened(alike, mix="pcb", base=str(tmp_path / "nowhere.safetensors"))


def test_experts_that_are_equal_write_one_text_however_they_are_put_together(tmp_path: Path) -> None:
    same = write_experts(tmp_path / "same", {"a": (1, SMALL), "b": (1, SMALL)})
    mixes: tuple[dict[str, str], ...] = ({}, {"mix": "top-1"}, {"mix": "average"}, {"mix": "pcb", "base": "1"})
    texts = {"".join(write(opened(same, **mix), "Once upon", most=20, sampling=GREEDY)) for mix in mixes}
    assert len(texts) == 1


# -- looked at again ----------------------------------------------------------------------------------------


def again(served: Served) -> str:
    assert served.look_again is not None
    return served.look_again()


def test_experts_come_and_go(folder: Path) -> None:
    served = opened(folder)
    scorer = ensemble_of(served)
    first = scorer.panel
    assert again(served) == "experts: a, b"
    assert scorer.version == first.version
    write_experts(folder, {"b": (2, OTHER), "c": (3, SMALL)})
    assert again(served) == "experts: b, c; added: c; removed: a"
    assert scorer.panel.members[0] is first.members[1], "what is as it was is not loaded again"
    assert scorer.version != first.version
    assert again(served) == "experts: b, c"


def test_an_expert_that_has_new_weights_is_another(folder: Path) -> None:
    served = opened(folder)
    write_experts(folder, {"a": (7, SMALL), "b": (2, OTHER)}, {"a": 1, "b": 3})
    assert again(served) == "experts: a, b; added: a; removed: a"
    assert rows_of(served.scorer).shape == (29, 256)


def test_what_does_not_fit_leaves_all_as_it_was(folder: Path) -> None:
    served = opened(folder)
    before = ensemble_of(served).panel
    short = SMALL.model_copy(update={"context": 20})
    for spoil, sentence in (
        (lambda: write_experts(folder, {"a": (1, short)}), "a context of 20 tokens, less than the server's 48"),
        (lambda: of_another_vocabulary(write_experts(folder, {"a": (1, SMALL), "b": (1, SMALL)})), "300 tokens"),
        (lambda: (folder / "ensemble.json").unlink(), "cannot read"),
    ):
        spoil()
        with pytest.raises(LocalError, match=sentence):
            again(served)
        assert ensemble_of(served).panel is before


def test_a_merge_is_made_again_only_if_something_has_changed(alike: Path) -> None:
    served = opened(alike, mix="average")
    first = ensemble_of(served).panel.members[0]
    assert again(served) == "experts: average"
    assert ensemble_of(served).panel.members[0] is first
    write_experts(alike, {"a": (1, SMALL), "c": (3, SMALL)})
    assert again(served) == "experts: average; added: average; removed: average"
    check_is(served, average([theta(1), theta(3)]))


def test_a_merge_is_a_checkpoint_that_new_experts_branch_from(tmp_path: Path) -> None:
    folder = write_experts(tmp_path / "experts", {"a": (1, SMALL), "b": (2, SMALL)}, {"a": 1, "b": 3})
    edit(folder, lambda table: [each.update(tokens=20) for each in table["experts"]])
    written = write_merge(folder, tmp_path / "out", Choices(device="cpu", mix="average"))
    checkpoint = load(written)
    assert torch.equal(checkpoint.vectors["parameters"], average([theta(1), theta(2)], [0.25, 0.75]))
    assert (checkpoint.about.samples, checkpoint.about.round) == (40, 0)
    part = {"name": "new", "only": ("asyncio/*",)}
    method, experts = {"name": "experts", "inner_steps": 10}, {"steps": 10, "parts": (part,)}
    family = Manifest.model_validate(
        {"name": "next", "model": SMALL.model_dump(), "method": method, "experts": experts}
    )
    begun = seeded(family, checkpoint)
    assert begun.origin is not None
    assert begun.origin.history == checkpoint.about.history
    assert opened(written).scorer.vocab == 256


def test_what_merges_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(LocalError, match="--mix top-1 merges nothing: say average or pcb"):
        write_merge(folder, folder, Choices(device="cpu", mix="top-1"))
    with pytest.raises(LocalError, match="different models"):
        write_merge(folder, folder, Choices(device="cpu", mix="average"))


@pytest.mark.parametrize("chosen", [{"prefer": "peers"}, {"patience": 1.0}])
def test_what_is_for_experts_on_peers_is_refused_of_a_folder(folder: Path, chosen: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match="--prefer and --patience are for a family that the node is in"):
        opened(folder, **chosen)
