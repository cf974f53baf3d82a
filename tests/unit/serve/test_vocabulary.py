"""Tokens as text: whole characters only, and in the end all that there was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.training.data.vocabulary import INCOMPLETE, ByteVocabulary, TokenizerVocabulary
from shoal.protocol.base.errors import LocalError
from tests.hf_kit import needs

TEXTS = ["sheep", "zażółć gęślą jaźń", "羊が三匹 🐑🐑🐑", "a\u0301 e\u0301 👩‍👩‍👧", " ", "line\n\n two   three"]


def byte_level() -> TokenizerVocabulary:
    """A tokenizer of bytes with some merges, as GPT-2's is made."""
    tokenizers: Any = needs("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(TEXTS[:3] * 3, trainer)
    return TokenizerVocabulary(made.to_str().encode(), frozenset(), special=False, what="it")


def byte_fallback() -> TokenizerVocabulary:
    """A tokenizer of words, with a token for each byte of other text, as Llama's first one."""
    tokenizers: Any = needs("tokenizers")
    words = ["<unk>", *(f"<0x{each:02X}>" for each in range(256)), "▁", "▁a", "▁sheep", "s", "h", "e", "p"]
    merges: list[tuple[str, str]] = []
    model = tokenizers.models.BPE(
        {word: n for n, word in enumerate(words)}, merges, byte_fallback=True, unk_token="<unk>"
    )
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    decoders = tokenizers.decoders
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return TokenizerVocabulary(made.to_str().encode(), frozenset(), special=False, what="it")


@pytest.fixture(params=["bytes", "byte_level", "byte_fallback"], scope="module")
def vocabulary(request: pytest.FixtureRequest) -> Any:
    return ByteVocabulary() if request.param == "bytes" else globals()[request.param]()


@pytest.mark.parametrize("text", [*TEXTS, " ".join(TEXTS) * 3, "🐑" * 40])
def test_a_text_comes_back_by_whole_characters(vocabulary: Any, text: str) -> None:
    writer = vocabulary.detokenizer()
    parts = [writer.push(token) for token in vocabulary.encode(text)]
    assert INCOMPLETE not in "".join(parts), "half a character has gone out"
    assert "".join(parts) == text
    assert writer.flush() == ""
    silent = "".join("x" if part else "." for part in parts).split("x")
    assert max(map(len, silent)) <= 6, "it comes as it is made"


def test_what_never_becomes_a_character_comes_as_a_hole(vocabulary: Any) -> None:
    writer = vocabulary.detokenizer()
    tokens = vocabulary.encode("x🜂")
    assert "".join(writer.push(token) for token in tokens[:-1]) == "x"
    assert set(writer.flush()) == {INCOMPLETE}
    assert writer.flush() == ""


def test_a_text_of_nothing_but_halves_is_not_held_for_ever(vocabulary: Any) -> None:
    writer = vocabulary.detokenizer()
    half = vocabulary.encode("🜂")[-1]
    parts = [writer.push(half) for _ in range(100)]
    assert len("".join(parts)) > 80


@given(st.text(max_size=60))
def test_any_text_comes_back(text: str) -> None:
    for made in (ByteVocabulary(), FALLBACK, LEVEL):
        writer = made.detokenizer()
        out = "".join(writer.push(token) for token in made.encode(text)) + writer.flush()
        assert out == text


LEVEL, FALLBACK = byte_level(), byte_fallback()


@pytest.mark.parametrize("before", ["", "a", "a sheep", "x", "🜂", "a🜂s", "a sheep sheep sheep a a"])
def test_a_text_goes_on_from_what_was_before_it(vocabulary: Any, before: str) -> None:
    text = " a sheep 🜂 a"
    tokens = vocabulary.encode(before)
    added = vocabulary.encode(before + text)[len(tokens) :]
    writer = vocabulary.detokenizer(tokens)
    out = "".join(writer.push(token) for token in added) + writer.flush()
    assert out == text


def test_a_damaged_tokenizer_is_named() -> None:
    with pytest.raises(LocalError, match=r"t\.json is no tokenizer"):
        TokenizerVocabulary(b"{}", frozenset(), special=False, what="t.json")
