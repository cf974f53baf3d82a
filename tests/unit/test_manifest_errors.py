"""What is said about a mistake in a manifest: one sentence with the file, the line, the key, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.base.toml import line_of
from shoal.node.manifest.manifest import load_manifest
from shoal.protocol.base.errors import LocalError

PARTS = """name = "fam"
[method]
name = "experts"
[experts]
[[experts.parts]]
name = "net"
only = ["asyncio/*"]
[[experts.parts]]
name = "text"
only = ["email/*"]
"""

STEPS = "it must be a whole number of steps, from 1 to 100,000"
NAME = "it must be 1 to 64 letters, digits and any of . _ -, of which the first is a letter or digit"
CODEC = 'it must be one of "fp32", "fp16", "bf16", "int8", "fp4" or "topk"'
PATTERNS = "it must be a list of at most 64, each a text of 1 to 256 characters"
HEADS = "dim must be a multiple of 2 * heads, and heads a multiple of kv_heads"

MISTAKES = [  # in a manifest whose first line is its name
    ("inner_step = 5", 2, "unknown key 'inner_step'; the nearest known key is 'method.inner_steps'"),
    (
        "[method]\nwarmup_step = 5",
        3,
        "unknown key 'method.warmup_step'; the nearest known key is 'method.warmup_steps'",
    ),
    ("[rouds]\nlast = 5", 2, "unknown key 'rouds'; the nearest known key is 'rounds'"),
    ("[method]\ninner_steps = 0", 3, f"'method.inner_steps' is 0; {STEPS}"),
    ("[method]\ninner_steps = 1.5", 3, f"'method.inner_steps' is 1.5; {STEPS}"),
    ('[method]\n\ninner_steps = "16"', 4, f"'method.inner_steps' is \"16\"; {STEPS}"),
    ("[method]\ninner_lr = 20", 3, "'method.inner_lr' is 20; it must be a number, more than 0 and at most 10"),
    ("[method]\nclip = inf", 3, "'method.clip' is inf; it must be a finite number, more than 0"),
    ("[method]\nbetas = [0, 1.5]", 3, "'method.betas.1' is 1.5; it must be a number, at least 0 and less than 1"),
    ('[method]\noptimizer = "sgd"', 3, '\'method.optimizer\' is "sgd"; it must be "adamw" or "muon"'),
    ('[model]\nname = "gpt"', 3, "'model.name' is \"gpt\"; it must be one of llama, hf, custom, flow, router"),
    ('model = "llama"', 2, "'model' is \"llama\"; it must be a table, written as [model]"),
    ('public = "yes"', 2, "'public' is \"yes\"; it must be true or false"),
    ('[data]\ndigest = "abc"', 3, "'data.digest' is \"abc\"; it must be 64 hexadecimal digits, or empty"),
    ('[data]\nonly = "docs/*"', 3, f"'data.only' is \"docs/*\"; {PATTERNS}"),
    ('[codec]\nscatter = "int7"', 3, f"'codec.scatter' is \"int7\"; {CODEC}"),
    ("[model]\nheads = 3", 2, f"'model': {HEADS}; dim is 128, heads is 3, and kv_heads is 2"),
    ("[method]\nstrides = 2", 2, "'method': `strides` is a setting of streaming-diloco, and nothing to diloco"),
    (
        '[model]\nname = "hf"',
        2,
        "the key 'model.config' is missing: it must be the path of a config.json, a table, or JSON",
    ),
    (
        "[data.stream]",
        2,
        "the key 'data.stream.dataset' is missing: it must be a name on the hub, as \"owner/name\"",
    ),
]
IN_PARTS = [
    ("steps = -20", 11, "'experts.parts.1.steps' is -20; it must be a whole number of steps, from 1 to 2^40"),
    ("stps = 20", 11, "unknown key 'experts.parts.1.stps'; the nearest known key is 'experts.parts.steps'"),
    (
        "[experts.parts.model]\ndim = 1.5",
        12,
        "'experts.parts.1.model.dim' is 1.5; it must be a whole number of values, from 8 to 65,536",
    ),
]
EACH = "it must be a list of 1 to 32, each a table, written as [[experts.parts]]"
NO_PARTS = f"the key 'experts.parts' is missing: {EACH}"
OF_WHOLE_FILES = [
    ("seed = 1", f": the key 'name' is missing: {NAME}"),
    ('name = "my run"', f", line 1: 'name' is \"my run\"; {NAME}"),
    (PARTS.split("[[")[0], f", line 4: {NO_PARTS}"),
    (
        "name = run",
        " is not TOML: Invalid value (at line 1, column 8); a text stands in quotes, and true and false are written in "
        "small letters",
    ),
    (
        'name "run"',
        " is not TOML: Expected '=' after a key in a key/value pair (at line 1, column 6); a line is a [table], or "
        "key = value",
    ),
]
ALL = [
    *((f'name = "a"\n{text}', f", line {line}: {said}") for text, line, said in MISTAKES),
    *((PARTS + text, f", line {line}: {said}") for text, line, said in IN_PARTS),
    *OF_WHOLE_FILES,
]


def refused(folder: Path, text: str) -> str:
    """What is said about the manifest, after the file's name, with which it begins."""
    file = folder / "my.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(LocalError) as caught:
        load_manifest(file)
    assert str(caught.value).startswith(str(file))
    return str(caught.value).removeprefix(str(file))


@pytest.mark.parametrize(("text", "said"), ALL)
def test_a_mistake_is_one_sentence_with_file_line_key_and_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text) == said


@pytest.mark.parametrize("wrong", ["x" * 5_000, 10**100])
def test_a_long_value_is_not_repeated_whole(tmp_path: Path, wrong: object) -> None:
    text = f'"{wrong}"' if isinstance(wrong, str) else str(wrong)
    said = refused(tmp_path, f'name = "a"\n[method]\ninner_steps = {text}')
    assert len(said) < 200
    assert said.endswith(f"...; {STEPS}")


def test_the_line_of_an_element_is_that_of_its_own_table() -> None:
    assert line_of(PARTS, ("experts", "parts", "0", "only")) == 7
    assert line_of(PARTS, ("experts", "parts", "1", "only")) == 10
    assert line_of(PARTS, ("experts", "parts", "1", "model")) == 8
    assert line_of(PARTS, ("experts", "clusters")) == 4
