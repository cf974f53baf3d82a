"""Tests one type of model in one process: a run is founded, trained for two rounds, exported, opened and served.

The results are compared with what the library itself makes of the same weights. If a run is refused, the library alone
is tested on building, training, saving and opening such a model, and the line at which it fails is reported. If it
cannot even build and train the model, the config is at fault, so the type counts as not tried.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from kit.toys import VOCAB, toy
from shoal.node.base import extra
from shoal.node.base.home import Home
from shoal.node.inference.engine.batch import write as write_text
from shoal.node.inference.engine.sequence import Sampling
from shoal.node.inference.scorer import Piece
from shoal.node.inference.served import BYTE_TOKENS, ServeOptions
from shoal.node.inference.source import open_source
from shoal.node.manifest.manifest import Introduction, Manifest
from shoal.node.manifest.method import MethodSpec
from shoal.node.manifest.model import HfSpec
from shoal.node.run.facts import first_base
from shoal.node.run.first_weights import create_first_weights
from shoal.node.run.founding import new_run
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.export import export
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.data.corpus import Corpus
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.hf import CONFIG_SEED, quietly
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import build
from shoal.node.training.state.outer import OuterState
from shoal.node.training.trainer.inner import InnerTrainer
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.messages.genesis import NONCE_SIZE
from shoal.protocol.net.system.identity import Identity

ROUNDS, MEMBERS = 2, 2
ME = PeerId("12D3KooWGbVRr6TdYgNWYn3FYVXP2XbLhSG6yfHwkLWGxP4rS7DZ")
TEXT = torch.frombuffer(bytearray(b"one sheep, two sheep, three sheep on the hill. " * 40), dtype=torch.uint8)
TOKENS = torch.arange(24).view(2, 12) * 7 % VOCAB
CLOSE = 1e-4  # of logits
WORKS, REFUSED, UNTRIED, FAILS = "works", "refused", "not tried", "fails"
END = "eos_token_id"  # in settings: what ends a text is the run's
COMPUTING = ("build", "train")  # where these fail, another config of the type may do


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one type."""

    type: str
    what: str  # WORKS, REFUSED, UNTRIED or FAILS
    where: str = ""  # the step at which it ended
    reason: str = ""
    line: str = ""  # of the library's code, where it fails


class Mismatch(Exception):
    """A result differs from the library's."""


class LibraryFailure(Exception):
    """The library alone fails at a step."""

    def __init__(self, step: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.step, self.line = step, _line(error)


def attempt(model_type: str) -> Verdict:
    """Tests one type."""
    try:
        table = toy(model_type)
    except Exception as error:
        return Verdict(model_type, UNTRIED, "build", _short(error), _line(error))
    step = ["found"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            _live(table, Path(folder), step.append)
    except Exception as error:
        if isinstance(error, LocalError) and step[-1] == "found":
            try:
                _alone(table)
            except LibraryFailure as failure:
                what = UNTRIED if failure.step in COMPUTING else REFUSED
                return Verdict(model_type, what, failure.step, _short(error), failure.line)
        return Verdict(model_type, FAILS, step[-1], _short(error), _line(error))
    return Verdict(model_type, WORKS)


def _on_paper(manifest: Manifest) -> Introduction:
    return new_run(manifest, Identity.of_seed(bytes(32)), bytes(NONCE_SIZE))


def _live(table: dict[str, Any], folder: Path, tell: Callable[[str], None]) -> None:
    """All steps; LocalError or Mismatch if one fails."""
    found, origin = create_first_weights(_manifest(table), (), Home(folder / "home").create(), _on_paper, ME)
    whole = found.manifest
    tell("train")
    state = OuterState(whole, origin.committed())
    trainer = InnerTrainer(whole, Corpus(TEXT, TEXT[:200], digest("sheep"), 1, 0))
    for _ in range(ROUNDS):
        _round(state, trainer)
    tell("export")
    about = About.of(whole, found.run, first_base(whole, state.root), (), samples=0, peer=ME, inner_steps=0)
    about = about.model_copy(update={"root": state.root.hex()})
    export(write_checkpoint(folder / "kept", about, state.committed.current, None), folder / "out")
    tell("compare")
    parameters = state.committed.current.vectors[PARAMETERS]
    network = _filled(whole, table, parameters)
    with quietly():
        network.save_pretrained(folder / "theirs")
    _compare(folder / "out", folder / "theirs")
    tell("open")
    _open(folder / "out", network)
    tell("serve")
    served = open_source(folder / "out", ServeOptions("cpu", slots=2, tokenizer=BYTE_TOKENS, threads=1))
    scores = served.scorer.extend([Piece(0, tuple(TOKENS[0].tolist()))]).rows
    served.scorer.end(0)
    _close("the scores", torch.from_numpy(np.asarray(scores)), _logits(network)[:1, -1].log_softmax(-1))
    list(write_text(served, "two sheep", max_tokens=4, sampling=Sampling(temperature=0.0)))


def _manifest(table: dict[str, Any]) -> Manifest:
    return Manifest(
        name="toy",
        seed=3,
        model=HfSpec(name="hf", config=json.dumps(table), context=16),
        method=MethodSpec(inner_steps=2, batch=2, warmup_steps=1),
    )


def _round(state: OuterState, trainer: InnerTrainer) -> None:
    """One round: members train from the state, one after the other, and their mean is applied to it."""
    base = state.committed.current.vectors[PARAMETERS].clone()
    mean = torch.zeros_like(base)
    number = state.committed.current.round + 1
    for lane in range(MEMBERS):
        trainer.load(base)
        trainer.train(number, [lane])
        mean += (base - trainer.read()) / MEMBERS
    if not mean.isfinite().all() or not mean.any():
        raise Mismatch("nothing was learned, or no numbers")
    encode = state.encoder(mean.numpy(), number)
    state.apply([encode(chunk) for chunk in range(len(state.bounds(number)))])


def _filled(whole: Manifest, table: dict[str, Any], parameters: Tensor) -> Any:
    """The library's own model with the run's weights, by name."""
    network = _built(table, CONFIG_SEED)
    ours = build(whole)
    named = dict(network.named_parameters())
    with torch.no_grad():
        for name, view in Layout.of(ours).views(parameters).items():
            named[name].copy_(view)
    return network.eval()


def _built(table: dict[str, Any], seed: int = 1) -> Any:
    library, table = extra.transformers(), dict(table)
    with quietly(), torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        config = library.AutoConfig.for_model(table.pop("model_type"), **table)
        return library.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def _compare(ours: Path, theirs: Path) -> None:
    """Mismatch unless both folders have the same files with the same content, except for the end-of-text token."""
    names = [{file.name for file in folder.iterdir()} for folder in (ours, theirs)]
    if missing := names[1] - names[0]:
        raise Mismatch(f"the export lacks {sorted(missing)}")
    one, other = (_tensors(folder) for folder in (ours, theirs))
    if differing := sorted(one.keys() ^ other.keys()):
        raise Mismatch(f"{differing[0]} is in one of the two only ({len(differing)} such)")
    for name, tensor in one.items():
        if tensor.dtype != other[name].dtype or not torch.equal(tensor, other[name]):
            raise Mismatch(f"{name} is not what save_pretrained writes")
    for file in sorted(name for name in names[1] if name.endswith(".json")):
        one, other = (json.loads((folder / file).read_text()) for folder in (ours, theirs))
        if one | {END: 0} != other | {END: 0}:
            raise Mismatch(f"{file} is not what save_pretrained writes")


def _tensors(folder: Path) -> dict[str, Tensor]:
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def _open(folder: Path, network: Any) -> None:
    """Mismatch unless the library opens the folder, finds all keys, and computes the same logits."""
    with quietly():
        opened, about = extra.transformers().AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if about[key]:
            raise Mismatch(f"{key}: {sorted(map(str, about[key]))[0]} ({len(about[key])} such)")
    _close("the logits", _logits(opened.eval()), _logits(network))


def _logits(network: Any, tokens: Tensor = TOKENS) -> Tensor:
    with torch.inference_mode(), quietly():
        logits: Tensor = network(input_ids=tokens, use_cache=False).logits
    return logits


def _close(what: str, ours: Tensor, theirs: Tensor) -> None:
    if not (away := (ours - theirs).abs().max()) <= CLOSE:
        raise Mismatch(f"{what} are {away:.2g} away from the library's")


# -- the library alone --------------------------------------------------------------------------------------


def _alone(table: dict[str, Any]) -> None:
    """LibraryFailure if the library cannot build, train, save and open a model, or if the model is not causal."""
    with _step("build"):
        network = _built(table)
    with _step("train"), quietly():
        network.train()
        logits = network(input_ids=TOKENS, use_cache=False).logits
        loss: Any = F.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
        loss.backward()
    network.eval()
    with _step("predict"):
        later = TOKENS.clone()
        later[:, -1] += 1
        one, other = (_logits(network, each)[:, :-1] for each in (TOKENS, later))
        if (one - other).abs().max() > CLOSE * one.abs().max():
            raise ValueError("a token's logits depend on those after it")
    with tempfile.TemporaryDirectory() as folder:
        with _step("save"), quietly():
            network.save_pretrained(folder)
        with _step("open"):
            _open(Path(folder), network)


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise LibraryFailure(name, error) from error


def _line(error: BaseException) -> str:
    """The innermost line of the library in the traceback, or of our code if there is none."""
    error = error.__cause__ if isinstance(error, LibraryFailure) and error.__cause__ else error
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [each for each in frames if f"{Path('site-packages/transformers')}/" in each.filename] or frames[-1:]
    last = theirs[-1]
    return f"{Path(last.filename).parent.name}/{Path(last.filename).name}:{last.lineno}: {last.line}"


def _short(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
