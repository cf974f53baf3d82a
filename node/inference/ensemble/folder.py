"""Serves a folder of experts, which is read again when the user says so; or merges it into one checkpoint.

On a second reading experts whose file and model are unchanged stay loaded. Vocabulary and context stay those of the
first reading, as requests under way rely on them; experts that do not fit them are refused. The tokenizer is the one of
the folder's table, unless the user names another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from blake3 import blake3
from pydantic import ValidationError
from torch import Tensor

from shoal.node.base.explain import explain
from shoal.node.base.options import MAX_SEED
from shoal.node.experts.files import StartingPoint, first_state, read_parameters
from shoal.node.experts.merging import average, pcb
from shoal.node.inference.chat import PlainChat
from shoal.node.inference.ensemble.ensemble import Ensemble
from shoal.node.inference.ensemble.panel import (
    VERSION_LENGTH,
    Member,
    Panel,
    log_likelihoods,
    prior_of,
    windows_of,
)
from shoal.node.inference.ensemble.table import ENSEMBLE, FETCH, Entry, Table, checked, read_table, vocab_of
from shoal.node.inference.models import ends_of, expert_of, models_at_once
from shoal.node.inference.served import AVERAGE, BYTE_TOKENS, PCB, Mix, Served, ServeOptions, parse_mix
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import AnyModel
from shoal.node.training.checkpoint.about import MODEL
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.data.vocabulary import BYTES, ByteVocabulary, TokenizerVocabulary, Vocabulary, read_tokenizer
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import kind_of
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import digest

TOKENIZER_FILE = "tokenizer.json"


def table_vocabulary(folder: Path, table: Table, vocab: int, chosen: str) -> Vocabulary:
    """The experts' vocabulary; `chosen` is a tokenizer's file, BYTE_TOKENS or empty. LocalError if it does not fit."""
    stated = table.tokens
    file = Path(chosen) if chosen else folder / TOKENIZER_FILE
    are_bytes = stated.kind == "bytes" if stated is not None else vocab <= BYTES and not file.exists()
    if chosen == BYTE_TOKENS or (not chosen and are_bytes):
        return ByteVocabulary()
    if not chosen and not file.exists():
        raise LocalError(
            f"the experts have {vocab:,} tokens, and {folder} has no {TOKENIZER_FILE}: name the one of the family's "
            f"data with --tokenizer",
            code="tokenizer-missing",
        )
    content = read_tokenizer(file)
    if stated is not None and stated.blake3 and not chosen and blake3(content).hexdigest() != stated.blake3:
        raise LocalError(f"{file} is not the tokenizer of these experts: {FETCH}", code="other-tokenizer")
    vocabulary = TokenizerVocabulary(content, frozenset(), special=False, what=str(file))
    if vocabulary.size > vocab:
        raise LocalError(f"{file} has {vocabulary.size:,} tokens, and the experts {vocab:,}", code="other-tokenizer")
    vocabulary.ends = ends_of(vocabulary, stated.end_of_text if stated is not None else "", str(file))
    return vocabulary


class FolderLoader:
    """Makes panels of one folder's experts, by the user's options."""

    def __init__(self, folder: Path, options: ServeOptions) -> None:
        """LocalError if the folder's table, the tokenizer or the text for the prior cannot be used."""
        self.mix = parse_mix(options.mix)
        if options.base and self.mix.name != PCB:
            raise LocalError(f"--base is for --mix {PCB}", code="bad-flags")
        table = read_table(folder)
        self.vocab, self.limit = vocab_of(table), _context(table)
        self.name = table.name
        self.vocabulary = table_vocabulary(folder, table, self.vocab, options.tokenizer)
        self._folder, self._options = folder, options
        self._windows = windows_of(options.prior, self.vocabulary, self.limit) if options.prior else ()

    def load(self, known: Sequence[Member] = ()) -> Panel:
        """The panel of the folder's present experts; members of `known` are not loaded again."""
        table = read_table(self._folder)
        if vocab_of(table) != self.vocab:
            raise LocalError(
                f"the experts in {self._folder} have other tokens than before: start the server anew",
                code="experts-differ",
            )
        if (shortest := _context(table)) < self.limit:
            raise LocalError(
                f"an expert in {self._folder} has a context of {shortest:,} tokens, less than the server's "
                f"{self.limit:,}: start the server anew to use it",
                code="experts-differ",
            )
        if self.mix.is_merge:
            return self._merged(table, known)
        loaded = {each.key: each for each in known}
        members = [loaded.get(entry.key) or self._member(entry) for entry in table.experts]
        return Panel(tuple(members), self._prior(table, [each.likelihoods for each in members]), self.mix.k)

    def _member(self, entry: Entry) -> Member:
        theta = read_parameters(checked(self._folder, entry), entry.model)
        expert = expert_of(entry.model, theta, self._options, blake3(entry.key.encode()).hexdigest()[:VERSION_LENGTH])
        return Member(entry.name, entry.key, expert, log_likelihoods(expert, self._windows))

    def merged(self, table: Table) -> tuple[AnyModel, Tensor]:
        """The merge of all experts: its model and its parameters, (d,); LocalError if they cannot be merged."""
        model = one_model(table.experts)
        base = read_base(self._options.base, model) if self.mix.name == PCB else None
        thetas = [read_parameters(checked(self._folder, each), each.model) for each in table.experts]
        prior = self._prior(table, [self._likelihoods(model, theta) for theta in thetas])
        return model, merge(thetas, prior, self.mix, base)

    def _merged(self, table: Table, known: Sequence[Member]) -> Panel:
        """A panel of one expert, which is the merge of all."""
        key = " + ".join(f"{each.key} {each.prior}" for each in table.experts)
        certain = torch.zeros(1, dtype=torch.float64)
        if known and known[0].key == key:
            return Panel((known[0],), certain, None)
        expert = expert_of(*self.merged(table), self._options, self.mix.name)
        names = tuple(each.name for each in table.experts)
        return Panel((Member(self.mix.name, key, expert, made_of=names),), certain, None)

    def _likelihoods(self, model: AnyModel, theta: Tensor) -> tuple[float, ...]:
        return log_likelihoods(expert_of(model, theta, self._options, ""), self._windows) if self._windows else ()

    def _prior(self, table: Table, likelihoods: Sequence[Sequence[float]]) -> Tensor:
        """log p(j), (E,): estimated on the text that --prior names, otherwise the table's."""
        if self._windows:
            return prior_of(likelihoods)
        given = torch.tensor([each.prior for each in table.experts], dtype=torch.float64)
        return (given / given.sum()).log()


def _context(table: Table) -> int:
    """The tokens that every expert's context holds."""
    return min(each.model.context for each in table.experts)


def open_ensemble(folder: Path, options: ServeOptions) -> Served:
    """The experts in a folder; LocalError if they cannot be served with these options."""
    loader = FolderLoader(folder, options)
    scorer = Ensemble(
        loader.load(), limit=loader.limit, slots=options.slots, mix=loader.mix.name, at_once=models_at_once()
    )
    return Served(
        name=loader.name,
        scorer=scorer,
        vocabulary=loader.vocabulary,
        chat=PlainChat(),
        created=int((folder / ENSEMBLE).stat().st_mtime),
        sentence=f"experts of {loader.name} in {folder}, mixed by {loader.mix.name}",
        look_again=partial(scorer.reload, loader.load),
    )


# -- merging ------------------------------------------------------------------------------------------------


def write_merge(folder: Path, out: Path, options: ServeOptions) -> Path:
    """Merge the experts in a folder; returns the new checkpoint in `out`. LocalError if they cannot be merged."""
    loader = FolderLoader(folder, options)
    if not loader.mix.is_merge:
        raise LocalError(f"--mix {loader.mix.name} merges nothing: say {AVERAGE} or {PCB}", code="bad-flags")
    table = read_table(folder)
    model, theta = loader.merged(table)
    manifest = _manifest(table.name, model)
    files = [bytes.fromhex(each.blake3) for each in table.experts]
    history = digest("merged experts", loader.mix.name.encode(), *files)
    start = StartingPoint(None, 0, history, sum(each.tokens for each in table.experts))
    state, about = first_state(manifest, theta, start, ())
    return write_checkpoint(out, about, state.current, None)


def _manifest(name: str, model: AnyModel) -> Manifest:
    """The manifest of a run that could begin with the merge."""
    try:
        return Manifest.model_validate({"name": name, "model": model.model_dump()})
    except ValidationError as error:
        raise LocalError(
            f"no run can begin with a merge of {name}: {explain(error, Manifest)}", code="experts-wrong"
        ) from error


def one_model(entries: Sequence[Entry]) -> AnyModel:
    """The model of all experts, with the shortest of their contexts; LocalError if they differ in anything else."""
    first = entries[0]
    context = min(each.model.context for each in entries)
    models = [each.model.model_copy(update={"context": context}) for each in entries]
    for each, model in zip(entries, models, strict=True):
        if model != models[0]:
            raise LocalError(
                f"the experts {first.name} and {each.name} have different models, so they cannot be merged: "
                f"mix them with --mix full or top-2",
                code="experts-differ",
            )
    return models[0]


def merge(thetas: Sequence[Tensor], log_prior: Tensor, mix: Mix, base: Tensor | None) -> Tensor:
    """The merged parameters, (d,); `base` are the parameters that all experts began with, which PCB needs."""
    if mix.name != PCB:
        return average(thetas, log_prior.exp().tolist())
    assert base is not None
    return pcb(base, thetas)


def read_base(text: str, model: AnyModel) -> Tensor:
    """The parameters that --base names by a safetensors file, a checkpoint's folder or a manifest's seed.

    LocalError if they are not of the model.
    """
    if not text:
        raise LocalError(
            "--mix pcb needs what the experts have begun with: name a safetensors file, a checkpoint's folder or the "
            "seed of the family's manifest with --base",
            code="bad-flags",
        )
    if text.isdecimal():
        if int(text) > MAX_SEED:
            raise LocalError(f"--base {text} is no seed: the largest is {MAX_SEED}", code="bad-value")
        built = kind_of(model).build(model, int(text))
        return Layout.of(built).read(built)
    path = Path(text)
    return read_parameters(path / MODEL if path.is_dir() else path, model)
