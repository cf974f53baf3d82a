"""From folders to models: what is there is served as it is, and what cannot be is said in a sentence."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.node.base.home import Home
from shoal.node.client.cli import main
from shoal.node.inference.chat import PlainChat
from shoal.node.inference.engine.batch import write as write_text
from shoal.node.inference.engine.sequence import Sampling
from shoal.node.inference.ensemble.table import is_of_pictures
from shoal.node.inference.folder import Settings
from shoal.node.inference.http.requests import ChatRequest, CompletionRequest
from shoal.node.inference.library import LibraryScorer
from shoal.node.inference.local import LlamaScorer
from shoal.node.inference.scorer import Piece
from shoal.node.inference.served import Served, ServeOptions
from shoal.node.inference.source import open_source
from shoal.node.manifest.data import DataSpec
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.manifest.model import HfSpec, LoraSpec
from shoal.node.training.checkpoint.about import MODEL
from shoal.node.training.checkpoint.export import export
from shoal.node.training.data.vocabulary import ByteVocabulary, TokenizerVocabulary
from shoal.node.training.models.hf import quietly
from shoal.protocol.base.errors import LocalError
from tests.hf_kit import TABLE, base_folder, needs
from tests.run_kit import first_weights
from tests.unit.checkpoint_kit import write
from tests.unit.serve.kit import GREEDY

RUN = Manifest(name="small", model=ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=24, context=64))
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def opened(path: Path, tokenizer: str = "") -> Served:
    return open_source(path, ServeOptions("cpu", slots=2, tokenizer=tokenizer, threads=1))


def scores(served: Served) -> np.ndarray:
    return served.scorer.extend([Piece(0, (5, 6, 7))]).rows


def tokenizer(folder: Path) -> Path:
    """A tokenizer.json of four words."""
    tokenizers: Any = needs("tokenizers")
    words = {"<end>": 0, "one": 1, "two": 2, "sheep": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_a_checkpoint_and_its_export_are_the_same_model(tmp_path: Path) -> None:
    path = write(tmp_path, 4, RUN)
    export(path, tmp_path / "exported")
    run, exported = opened(path), opened(tmp_path / "exported")
    assert (run.name, exported.name) == ("small", "exported")
    assert isinstance(exported.scorer, LlamaScorer), "our own decoder needs no library"
    np.testing.assert_array_equal(scores(run), scores(exported))
    assert (run.scorer.limit, run.scorer.vocab, exported.scorer.limit) == (64, 256, 64)
    assert isinstance(exported.vocabulary, ByteVocabulary)


def test_the_library_opens_our_export_to_the_same_scores(tmp_path: Path) -> None:
    needs("transformers")
    export(write(tmp_path, 4, RUN), tmp_path / "exported")
    ours = scores(opened(tmp_path / "exported"))
    config = json.loads((tmp_path / "exported/config.json").read_text())
    (tmp_path / "exported/config.json").write_text(json.dumps(config | {"transformers_version": "5"}))
    theirs = opened(tmp_path / "exported")
    assert isinstance(theirs.scorer, LibraryScorer)
    np.testing.assert_allclose(scores(theirs), ours, atol=1e-4)


def hf_run(lora: LoraSpec | None = None) -> Manifest:
    model = HfSpec(name="hf", config=json.dumps(TABLE), context=16, lora=lora)
    return Manifest(name="hf-run", model=model, method=MethodSpec(inner_steps=6, batch=4))


def test_a_run_of_a_librarys_model_is_served(tmp_path: Path) -> None:
    needs("transformers")
    _, checkpoint = first_weights(hf_run(), (), Home(tmp_path).create())
    served = opened(checkpoint.path)
    assert isinstance(served.scorer, LibraryScorer)
    assert (served.name, served.scorer.limit) == ("hf-run", 16)
    export(checkpoint.path, tmp_path / "exported")
    np.testing.assert_allclose(scores(opened(tmp_path / "exported")), scores(served), atol=1e-5)


def test_adapters_are_refused_with_what_to_do(tmp_path: Path) -> None:
    needs("peft")
    lora = LoraSpec(rank=2, targets=("q_proj",), base="seed")
    _, checkpoint = first_weights(hf_run(lora), (), Home(tmp_path).create())
    with pytest.raises(LocalError, match="merge_and_unload"):
        opened(checkpoint.path)
    export(checkpoint.path, tmp_path / "exported")
    with pytest.raises(LocalError, match="holds adapters"):
        opened(tmp_path / "exported")


def test_a_runs_tokenizer_is_found_or_asked_for(tmp_path: Path) -> None:
    data = DataSpec(name="files", tokenizer="tokenizer.json", end_of_text="<end>")
    path = write(tmp_path, 4, RUN.model_copy(update={"data": data}))
    with pytest.raises(LocalError, match="--tokenizer"):
        opened(path)
    served = opened(path, str(tokenizer(tmp_path)))
    assert isinstance(served.vocabulary, TokenizerVocabulary)
    assert served.vocabulary.encode("two sheep") == [2, 3]
    assert served.vocabulary.ends == {0}
    with pytest.raises(LocalError, match="are bytes"):
        opened(write(tmp_path / "bytes", 4, RUN), str(tmp_path / "tokenizer.json"))


def test_a_folder_with_a_tokenizer_and_a_template(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "model")
    tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<end>"}))
    served = opened(folder)
    said = [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]
    assert served.chat.prompt(said) == "<system>one<user>two<assistant>"
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(LocalError, match="roles must alternate"):
        opened(folder).chat.prompt(said)
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(LocalError, match="refuses"):
        opened(folder).chat.prompt(said)


WHERE: dict[str, dict[str, object]] = {
    "generation_config.json": {"eos_token_id": [4, 5]},
    "config.json": {"eos_token_id": 6},
    "tokenizer_config.json": {"eos_token": "<7>"},
    "tokenizer_config.json as a table": {"eos_token": {"content": "<8>", "special": True}},
    "tokenizer_config.json by its author's name": {"extra_special_tokens": {"eot_token": "<9>"}},
    "special_tokens_map.json": {"eos_token": {"content": "<10>"}},
}


def numbered(folder: Path, **settings: object) -> Path:
    """A model whose tokens beside the words are <4> to <15>; its tokenizer_config has these settings."""
    tokenizers: Any = needs("tokenizers")
    base_folder(folder)
    (folder / "generation_config.json").write_text("{}")
    with_config(folder, eos_token_id=None)
    made = tokenizers.Tokenizer.from_file(str(tokenizer(folder)))
    made.add_special_tokens([f"<{number}>" for number in range(4, 16)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


NARROW = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SHORT: list[tuple[dict[str, Any], int]] = [  # types that see 16 tokens by words of their own, and how many they take
    ({**NARROW, "model_type": "roberta", "is_decoder": True, "intermediate_size": 32, "pad_token_id": 3}, 12),
    (
        {"model_type": "prophetnet", "vocab_size": 256, "hidden_size": 16, "is_decoder": True, "pad_token_id": 1}
        | {"num_decoder_layers": 1, "num_decoder_attention_heads": 2, "decoder_ffn_dim": 32, "disable_ngram_loss": True}
        | {"num_encoder_layers": 1, "num_encoder_attention_heads": 2, "encoder_ffn_dim": 32},
        13,
    ),
    ({"model_type": "mpt", "vocab_size": 256, "d_model": 16, "n_heads": 2, "n_layers": 1}, 16),
    ({"model_type": "gpt2", "vocab_size": 256, "n_embd": 16, "n_head": 2, "n_layer": 1}, 16),
    (
        {"model_type": "whisper", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
        | {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_target_positions": 16},
        16,
    ),
]
SHORT_BY = {
    "roberta": "max_position_embeddings",
    "prophetnet": "max_position_embeddings",
    "mpt": "max_seq_len",
    "gpt2": "n_positions",
}


@pytest.mark.parametrize(("table", "limit"), SHORT, ids=[table["model_type"] for table, _ in SHORT])
def test_a_model_is_given_as_many_tokens_as_it_can_take_and_no_more(
    tmp_path: Path, table: dict[str, Any], limit: int
) -> None:
    transformers = needs("transformers")
    more = {SHORT_BY[table["model_type"]]: 16} if table["model_type"] in SHORT_BY else {}
    config = transformers.AutoConfig.for_model(**table, **more)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    served = opened(tmp_path / "model", "bytes")
    assert served.scorer.limit == limit
    assert np.isfinite(served.scorer.extend([Piece(0, tuple(range(65, 65 + limit)))]).rows).all()


@pytest.mark.parametrize(
    ("where", "ends"), [*zip(WHERE, ({4, 5}, {6}, {7}, {8}, {9}, {10}), strict=True), ("all", {4, 5, 6, 7, 9, 10})]
)
def test_a_text_ends_at_every_token_that_a_file_of_the_folder_names(tmp_path: Path, where: str, ends: set[int]) -> None:
    folder = numbered(tmp_path / "model")
    for place in [place for place in WHERE if " as " not in place] if where == "all" else [where]:
        file = folder / place.partition(" ")[0]
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(before | WHERE[place]))
    assert opened(folder).vocabulary.ends == ends


@pytest.mark.parametrize("form", ["a string", "one of several by name", "a file"])
def test_an_answer_ends_where_the_template_ends_a_turn(tmp_path: Path, form: str) -> None:
    turn = "{% for m in messages %}<4>{{ m.role }} {{ m.content | trim }} <5>\n{% endfor %}<4>assistant"
    told = {"a string": turn, "one of several by name": [{"name": "default", "template": turn}], "a file": TEMPLATE}
    folder = numbered(tmp_path / "model", eos_token="<7>", chat_template=told[form])
    if form == "a file":
        (folder / "chat_template.jinja").write_text(turn)
    with_config(folder, eos_token_id=6)
    served = opened(folder)
    assert served.chat.prompt([{"role": "user", "content": "two"}]) == "<4>user two <5>\n<4>assistant"
    assert served.vocabulary.ends == {5, 6, 7}


def templated(folder: Path, template: Any, **settings: object) -> Path:
    return numbered(folder, bos_token="<4>", chat_template=template, **settings)


EACH = "{% for m in messages %}"
ENDS_OF_TURNS: dict[str, tuple[str, set[int]]] = {
    "upper case": ("{{ bos_token }}" + EACH + "{{ m.content | upper }}<5>{% endfor %}", {5}),
    "as JSON": ("{{ bos_token }}" + EACH + "{{ m | tojson }}<5>{% endfor %}", {5}),
    "text before the end": (EACH + "[{{ m.role }}]{{ m.content }}[/{{ m.role }}]<5>{% endfor %}", {5}),
    "the word answer behind it": (EACH + "{{ m.content }}<5>{% endfor %}\nwrite your answer:", {5}),
    "needs a system message": (
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}"
        + EACH
        + "{{ m.content }}<5>{% endfor %}",
        {5},
    ),
    "an answer is never the last": (
        EACH
        + "{% if loop.last and m.role == 'assistant' %}{{ raise_exception('whose turn is it?') }}{% endif %}"
        + "{{ m.content }}{% if m.role == 'assistant' %}<5>{% endif %}{% endfor %}",
        {5},
    ),
    "another end for the last": (
        EACH
        + "<6>{{ m.role }}<7>{{ m.content }}{{ '<8>' if loop.last else '<5>' }}{% endfor %}"
        + "{{ '<6>assistant<7>' if add_generation_prompt }}",
        {8},
    ),
    "always asks": (EACH + "{{ '<5>' if m.role == 'user' else '<6>' }}{{ m.content }}{% endfor %}<6>", {5}),
    "the end of a turn, then the begin of a text": (EACH + "<4>{{ m.content }} <5> {% endfor %}<4>", {5}),
    "begins a text, and ends none": (EACH + "{{ m.content }}{% endfor %}<4>", set()),
    "leaves answers out": (
        "{{ bos_token }}" + EACH + "{{ m.content if m.role == 'user' }}{% endfor %}",
        set(),
    ),
    "parts alone": (EACH + "{% for part in m.content %}{{ part.text }}{% endfor %}<5>{% endfor %}", {5}),
}


@pytest.mark.parametrize("form", ENDS_OF_TURNS)
def test_the_end_of_a_turn_is_what_stands_behind_an_answer(tmp_path: Path, form: str) -> None:
    template, ends = ENDS_OF_TURNS[form]
    served = opened(templated(tmp_path / "model", template))
    assert served.vocabulary.ends == ends
    said = [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]
    assert "two" in served.chat.prompt(said).lower()


ENDS_WITHOUT_TOKENS = {
    "the next message": (EACH + "{{ m.role }}: {{ m.content }}\n\n{% endfor %}", "\nuser:"),
    "an end in letters": (EACH + "[{{ m.role }}]{{ m.content }}[/{{ m.role }}]{% endfor %}", "[/assistant]"),
    "always asks": (EACH + "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>", "<user>"),
}


@pytest.mark.parametrize("form", ENDS_WITHOUT_TOKENS)
def test_without_a_token_a_turn_ends_where_the_template_goes_on(tmp_path: Path, form: str) -> None:
    template, stop = ENDS_WITHOUT_TOKENS[form]
    served = opened(templated(tmp_path / "model", template))
    assert served.vocabulary.ends == set()
    assert served.chat.stops == (stop,)


def test_where_messages_follow_each_other_with_nothing_between_there_is_no_end(tmp_path: Path) -> None:
    assert opened(templated(tmp_path / "model", EACH + "{{ m.content }}\n{% endfor %}")).chat.stops == ()


def test_characters_that_a_template_writes_as_halves_are_whole(tmp_path: Path) -> None:
    served = opened(templated(tmp_path / "model", EACH + r"{{ '\ud83d\ude00\ud83d' }}{{ m.content }}<5>{% endfor %}"))
    assert served.vocabulary.ends == {5}
    assert served.chat.prompt(MESSAGES) == "\U0001f600\ufffdtwo<5>"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_what_begins_a_text_is_known_by_its_number_too(tmp_path: Path, file: str) -> None:
    folder = numbered(tmp_path / "model", chat_template=EACH + "{{ m.content }}{% endfor %}<4>")
    with_config(folder, bos_token_id=None)
    before = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(before | {"bos_token_id": 4}))
    assert opened(folder).vocabulary.ends == set()
    (folder / file).write_text(json.dumps(before | {"bos_token_id": 5}))
    assert opened(folder).vocabulary.ends == {4}


BROKEN = {
    "broken": ("{% for m in messages %}\n{{ m.content }", "line 2"),
    "a filter that is none": ("{{ messages | shout }}", "line 1.*shout"),
    "empty": ("", "holds no template"),
    "blank": (" \n", "holds no template"),
    "without what users say": ("{% for m in messages %}<{{ m.role }}>{% endfor %}", "leaves out what the user says"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_template_that_is_none_is_refused_at_the_start_with_its_files_name(tmp_path: Path, case: str) -> None:
    template, words = BROKEN[case]
    folder = templated(tmp_path / "model", template)
    with pytest.raises(LocalError, match=rf"tokenizer_config\.json.*{words}"):
        opened(folder)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(LocalError, match=rf"chat_template\.jinja.*{words}"):
        opened(folder)


@pytest.mark.parametrize("strange", [5, ["x"], {"default": 5}, [{"name": "default"}]])
def test_a_template_of_another_kind_is_refused(tmp_path: Path, strange: Any) -> None:
    with pytest.raises(LocalError, match=r"tokenizer_config\.json.*chat_template"):
        opened(templated(tmp_path / "model", strange))


def test_templates_of_which_none_is_the_usual_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    several = {"tool_use": TEMPLATE, "rag": TEMPLATE}
    for form in (several, [{"name": name, "template": each} for name, each in several.items()]):
        caplog.clear()
        served = opened(templated(tmp_path / "model", form))
        assert served.chat.stops == PlainChat.stops
        assert "has templates for conversations named rag, tool_use, and none named default" in caplog.text
        shutil.rmtree(tmp_path / "model")
    folder = numbered(tmp_path / "model") / "additional_chat_templates"  # as transformers saves them
    folder.mkdir()
    for name in ("rag", "tool_use"):
        (folder / f"{name}.jinja").write_text(TEMPLATE)
    caplog.clear()
    assert opened(folder.parent).chat.stops == PlainChat.stops
    assert "named rag, tool_use, and none named default" in caplog.text


def test_a_template_may_be_its_processors(tmp_path: Path) -> None:
    folder = numbered(tmp_path / "model")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": EACH + "{{ m.content }}<5>{% endfor %}"}))
    assert opened(folder).vocabulary.ends == {5}
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": ""}))
    with pytest.raises(LocalError, match=r"chat_template\.json holds no template"):
        opened(folder)


def test_a_template_that_is_not_used_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = templated(tmp_path / "model", TEMPLATE)
    assert isinstance(opened(folder, "bytes").vocabulary, ByteVocabulary)
    assert "tokenizer_config.json" in caplog.text
    assert "is not used" in caplog.text


MESSAGES = [{"role": "user", "content": "two"}]


def test_strings_that_end_a_text_end_an_answer(tmp_path: Path) -> None:
    folder = numbered(tmp_path / "model", chat_template=TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"stop_strings": ["sheep"]}))
    assert (served := opened(folder)).stops == ("sheep",)
    of_text = CompletionRequest.model_validate({"model": "m", "prompt": "two", "stop": ["x"]})
    assert of_text.plan(served, 0).jobs[0].stops == ("x", "sheep")
    chat = ChatRequest.model_validate({"model": "m", "messages": MESSAGES})
    assert chat.plan(served, 0).jobs[0].stops == ("<user>", "sheep")
    going_on = of_text.model_copy(update={"ignore_eos": True})
    assert going_on.plan(served, 0).jobs[0].stops == ("x",)


@pytest.mark.parametrize(("said", "limit"), [(32, 32), (128, 64), (int(1e30), 64), (None, 64)])
def test_the_strictest_says_how_many_tokens_the_model_sees(tmp_path: Path, said: int | None, limit: int) -> None:
    assert opened(numbered(tmp_path / "model", model_max_length=said)).scorer.limit == limit


def with_config(folder: Path, **change: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    return folder


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LocalError, match=r"^\./nowhere is not a folder"):
        open_source("./nowhere", ServeOptions("cpu"))  # a path, and no run's name
    kinds = (("nowhere", "not a folder"), ("n" * 300, "not a folder"), ("empty", "neither a checkpoint"))
    for path, words in ((tmp_path / name, words) for name, words in kinds):
        assert not is_of_pictures(path)
        with pytest.raises(LocalError, match=words):
            opened(path)


def test_a_folder_of_checkpoints_stands_for_the_newest_of_its_only_run(tmp_path: Path) -> None:
    for peer, round in (("peer-1", 8), ("peer-2", 4)):
        write(tmp_path / f"up/{peer}/runs/one/checkpoints", round, RUN)
    served = opened(tmp_path / "up")
    assert "round 8" in served.sentence
    assert (scores(served) == scores(opened(tmp_path / "up/peer-1"))).all()
    write(tmp_path / "up/peer-2/runs/two/checkpoints", 12, RUN.model_copy(update={"seed": 1}))
    with pytest.raises(LocalError, match=r"checkpoints of 2 runs: name one of them, such as .*round-00000012"):
        opened(tmp_path / "up")


def test_damaged_ones(tmp_path: Path) -> None:
    path = write(tmp_path, 4, RUN)
    export(path, tmp_path / "exported")
    data = bytearray((path / MODEL).read_bytes())
    data[-1] ^= 1
    (path / MODEL).write_bytes(data)
    with pytest.raises(LocalError, match="is damaged"):
        opened(path)
    (tmp_path / "exported" / MODEL).write_bytes(data[:-100])
    with pytest.raises(LocalError, match="cannot be read"):
        opened(tmp_path / "exported")
    (tmp_path / "exported/config.json").write_text("{")
    with pytest.raises(LocalError, match="not JSON"):
        opened(tmp_path / "exported")


def test_models_that_write_no_text(tmp_path: Path) -> None:
    transformers = needs("transformers")
    with quietly(), torch.random.fork_rng(devices=()):
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.ViTConfig(**sizes, image_size=32)
        transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    with pytest.raises(LocalError, match="models without a language head"):
        opened(tmp_path / "vit")
    folder = base_folder(tmp_path / "model")
    with pytest.raises(LocalError, match="other head, or is damaged"):
        opened(with_config(folder, tie_word_embeddings=False, num_hidden_layers=3))
    with pytest.raises(LocalError, match="nonsense"):
        opened(with_config(folder, model_type="nonsense", auto_map={"AutoConfig": "evil.Evil"}))


def test_tokens_that_nobody_has_named(tmp_path: Path) -> None:
    transformers = needs("transformers")
    with quietly(), torch.random.fork_rng(devices=()):
        config = transformers.AutoConfig.for_model(**TABLE | {"vocab_size": 300})
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    with pytest.raises(LocalError, match="300 tokens: name a tokenizer"):
        opened(tmp_path / "model")
    assert isinstance(opened(tmp_path / "model", "bytes").vocabulary, ByteVocabulary)


def test_a_text_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    path = write(tmp_path, 4, RUN)
    text = "".join(write_text(opened(path), "ab", max_tokens=20, sampling=GREEDY))
    again = "".join(write_text(opened(path), "ab", max_tokens=None, sampling=GREEDY))
    with pytest.raises(LocalError, match=r"no text in UTF-8, because of a byte 0xe9"):
        list(write_text(opened(path), os.fsdecode(b"caf\xe9"), max_tokens=20, sampling=GREEDY))
    assert again.startswith(text)
    for prompt, words in (("", "empty"), ("x" * 64, "more than the model's context, 64"), ("x" * 60, "64")):
        with pytest.raises(LocalError, match=words):
            list(write_text(opened(path), prompt, max_tokens=20, sampling=Sampling()))
    monkeypatch.setattr(sys, "argv", ["shoal", "generate", str(path), "ab", "--max-tokens", "20", "--temperature", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.parametrize("given", [["-"], [b"caf\xe9"], ["caf", "--stop", b"\xe9"]], ids=["pipe", "argument", "stop"])
def test_what_is_no_text_is_refused_in_a_sentence(
    tmp_path: Path, given: list[str | bytes], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes come as Python hands them on: arguments with surrogates, and a strict stdin where the locale is not C."""
    export(write(tmp_path, 4, RUN), tmp_path / "exported")
    monkeypatch.setattr(sys, "argv", ["shoal", "generate", str(tmp_path / "exported"), *map(os.fsdecode, given)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), "utf-8", "strict"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "because of a byte 0xe9" in said
    assert said.count("\n") == 1


def test_a_config_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": ' * 900 + "1" + "}" * 900)
    with pytest.raises(LocalError, match="nested too deeply"):
        Settings(tmp_path)
