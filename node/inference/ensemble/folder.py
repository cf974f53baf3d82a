"""A folder of experts as something to serve, looked at again when its owner says so; or merged into one checkpoint.

Whose file and model are what they were stays loaded, and goes on with its sequences. Vocabulary and context are those
of the first look: what does not fit them is refused, as requests have been planned by them. The tokens are what the
folder's table says they are, or what its owner chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from blake3 import blake3
from pydantic import ValidationError
from torch import Tensor

from shoal.node.base.explain import explain
from shoal.node.experts.files import Beginning, first_state, read_parameters
from shoal.node.inference.chat import PlainChat
from shoal.node.inference.ensemble.ensemble import Ensemble
from shoal.node.inference.ensemble.mix import AVERAGE, PCB, merge, one_model, parse_mix, read_base
from shoal.node.inference.ensemble.panel import SHOWN, Member, Panel, changes, foreseen, prior_of, windows_of
from shoal.node.inference.ensemble.table import ENSEMBLE, FETCH, Entry, Table, checked, read_table, vocab_of
from shoal.node.inference.models import ends_of, expert_of, side_by_side
from shoal.node.inference.served import BYTE_TOKENS, Choices, Served
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import AnyModel
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.data.vocabulary import BYTES, ByteVocabulary, TokenizerVocabulary, Vocabulary, read_tokenizer
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import digest

TOKENIZER_FILE = "tokenizer.json"


def table_vocabulary(folder: Path, table: Table, vocab: int, chosen: str) -> Vocabulary:
    """`chosen` is a tokenizer's file, or BYTE_TOKENS; LocalError if the experts' tokens are not known, or others."""
    told = table.tokens
    file = Path(chosen) if chosen else folder / TOKENIZER_FILE
    are_bytes = told.kind == "bytes" if told is not None else vocab <= BYTES and not file.exists()
    if chosen == BYTE_TOKENS or (not chosen and are_bytes):
        return ByteVocabulary()
    if not chosen and not file.exists():
        raise LocalError(
            f"the experts have {vocab:,} tokens, and {folder} has no {TOKENIZER_FILE}: name the one of the family's "
            f"data with --tokenizer"
        )
    content = read_tokenizer(file)
    if told is not None and told.blake3 and not chosen and blake3(content).hexdigest() != told.blake3:
        raise LocalError(f"{file} is not the tokenizer of these experts: {FETCH}")
    vocabulary = TokenizerVocabulary(content, frozenset(), special=False, what=str(file))
    if vocabulary.size > vocab:
        raise LocalError(f"{file} has {vocabulary.size:,} tokens, and the experts {vocab:,}")
    vocabulary.ends = ends_of(vocabulary, told.end_of_text if told is not None else "", str(file))
    return vocabulary


class Loader:
    """Of one folder, as its owner has chosen to mix it."""

    def __init__(self, folder: Path, choices: Choices) -> None:
        """LocalError unless the folder's table, the tokens and the text of the prior are there."""
        self.mix = parse_mix(choices.mix)
        if choices.base and self.mix.name != PCB:
            raise LocalError(f"--base is for --mix {PCB}")
        table = read_table(folder)
        self.vocab, self.limit = vocab_of(table), _context(table)
        self.name = table.name
        self.vocabulary = table_vocabulary(folder, table, self.vocab, choices.tokenizer)
        self._folder, self._choices = folder, choices
        self._windows = windows_of(choices.prior, self.vocabulary, self.limit) if choices.prior else ()

    def load(self, known: Sequence[Member] = ()) -> Panel:
        """The panel that the folder gives now; `known` are members that need not be loaded again."""
        table = read_table(self._folder)
        if vocab_of(table) != self.vocab:
            raise LocalError(f"the experts in {self._folder} have other tokens than before: start the server anew")
        if (shortest := _context(table)) < self.limit:
            raise LocalError(
                f"an expert in {self._folder} has a context of {shortest:,} tokens, less than the server's "
                f"{self.limit:,}: start the server anew to use it"
            )
        if self.mix.is_merge:
            return self._merged(table, known)
        loaded = {each.key: each for each in known}
        members = [loaded.get(entry.key) or self._member(entry) for entry in table.experts]
        return Panel(tuple(members), self._prior(table, [each.foreseen for each in members]), self.mix.k)

    def _member(self, entry: Entry) -> Member:
        theta = read_parameters(checked(self._folder, entry), entry.model)
        expert = expert_of(entry.model, theta, self._choices, blake3(entry.key.encode()).hexdigest()[:SHOWN])
        return Member(entry.name, entry.key, expert, foreseen(expert, self._windows))

    def merged(self, table: Table) -> tuple[AnyModel, Tensor]:
        """The one model that is made of all, and its parameters (d,); LocalError if they cannot be merged."""
        model = one_model(table.experts)
        base = read_base(self._choices.base, model) if self.mix.name == PCB else None
        thetas = [read_parameters(checked(self._folder, each), each.model) for each in table.experts]
        prior = self._prior(table, [self._foreseen(model, theta) for theta in thetas])
        return model, merge(thetas, prior, self.mix, base)

    def _merged(self, table: Table, known: Sequence[Member]) -> Panel:
        """A panel of one, the merge of all."""
        key = " + ".join(f"{each.key} {each.prior}" for each in table.experts)
        certain = torch.zeros(1, dtype=torch.float64)
        if known and known[0].key == key:
            return Panel((known[0],), certain, None)
        expert = expert_of(*self.merged(table), self._choices, self.mix.name)
        names = tuple(each.name for each in table.experts)
        return Panel((Member(self.mix.name, key, expert, made_of=names),), certain, None)

    def _foreseen(self, model: AnyModel, theta: Tensor) -> tuple[float, ...]:
        return foreseen(expert_of(model, theta, self._choices, ""), self._windows) if self._windows else ()

    def _prior(self, table: Table, seen: Sequence[Sequence[float]]) -> Tensor:
        """log p(j), (E,): by the text that was named for it, else the table's."""
        if self._windows:
            return prior_of(seen)
        given = torch.tensor([each.prior for each in table.experts], dtype=torch.float64)
        return (given / given.sum()).log()


def _context(table: Table) -> int:
    """Tokens that every expert's context holds."""
    return min(each.model.context for each in table.experts)


def open_ensemble(folder: Path, choices: Choices) -> Served:
    """The experts in it; LocalError, which says what is wrong, if they cannot be served as it was chosen."""
    loader = Loader(folder, choices)
    scorer = Ensemble(
        loader.load(), limit=loader.limit, slots=choices.slots, mix=loader.mix.name, at_once=side_by_side()
    )

    def look_again() -> str:
        before = scorer.panel
        after = loader.load(before.members)
        scorer.take(after)
        return changes(before.names, after.names)

    return Served(
        name=loader.name,
        scorer=scorer,
        vocabulary=loader.vocabulary,
        chat=PlainChat(),
        created=int((folder / ENSEMBLE).stat().st_mtime),
        sentence=f"experts of {loader.name} in {folder}, mixed by {loader.mix.name}",
        look_again=look_again,
    )


def write_merge(folder: Path, out: Path, choices: Choices) -> Path:
    """Merge the experts in a folder, and say where in `out` the checkpoint lies; LocalError if that cannot be."""
    loader = Loader(folder, choices)
    if not loader.mix.is_merge:
        raise LocalError(f"--mix {loader.mix.name} merges nothing: say {AVERAGE} or {PCB}")
    table = read_table(folder)
    model, theta = loader.merged(table)
    manifest = _manifest(table.name, model)
    files = [bytes.fromhex(each.blake3) for each in table.experts]
    history = digest("merged experts", loader.mix.name.encode(), *files)
    start = Beginning(None, 0, history, sum(each.tokens for each in table.experts))
    state, about = first_state(manifest, theta, start, ())
    return write_checkpoint(out, about, state.current, None)


def _manifest(name: str, model: AnyModel) -> Manifest:
    """Of a run that would begin with it."""
    try:
        return Manifest.model_validate({"name": name, "model": model.model_dump()})
    except ValidationError as error:
        raise LocalError(f"no run can begin with a merge of {name}: {explain(error, Manifest)}") from error
