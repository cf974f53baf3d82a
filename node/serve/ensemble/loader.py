"""From a folder of experts to a panel, at the start and whenever it is looked at again.

Whose file and model are what they were stays loaded, and goes on with its sequences. Vocabulary and context are those
of the first look: what does not fit them is refused, as requests have been planned by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.experts.files import read_parameters
from shoal.node.model_spec import AnyModel
from shoal.node.serve.ensemble.merged import merge, one_model, read_base
from shoal.node.serve.ensemble.mix import PCB, parse_mix
from shoal.node.serve.ensemble.panel import SHOWN, Member, Panel
from shoal.node.serve.ensemble.prior import Window, foreseen, last_windows, prior_of
from shoal.node.serve.ensemble.table import Entry, Table, checked, read_table, vocab_of
from shoal.node.serve.ensemble.weights import expert_of
from shoal.node.serve.served import BYTE_TOKENS, Choices
from shoal.node.serve.text import BYTES, Bytes, Codec, Tokenized, read_tokenizer
from shoal.node.tokens import TOKENIZER_FILE
from shoal.protocol.errors import LocalError


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
        self.codec = _codec(folder, self.vocab, choices.tokenizer)
        self._folder, self._choices = folder, choices
        self._windows = _windows(choices.prior, self.codec, self.limit) if choices.prior else ()

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
        members = [loaded.get(_key(entry)) or self._member(entry) for entry in table.experts]
        return Panel(tuple(members), self._prior(table, [each.foreseen for each in members]), self.mix.k)

    def _member(self, entry: Entry) -> Member:
        key = _key(entry)
        theta = read_parameters(checked(self._folder, entry), entry.model)
        expert = expert_of(entry.model, theta, self._choices, blake3(key.encode()).hexdigest()[:SHOWN])
        return Member(entry.name, key, expert, foreseen(expert, self._windows))

    def _merged(self, table: Table, known: Sequence[Member]) -> Panel:
        """A panel of one, the merge of all."""
        model = one_model(table.experts)
        key = " + ".join(f"{_key(each)} {each.prior}" for each in table.experts)
        certain = torch.zeros(1, dtype=torch.float64)
        if known and known[0].key == key:
            return Panel((known[0],), certain, None)
        base = read_base(self._choices.base, model) if self.mix.name == PCB else None
        thetas = [read_parameters(checked(self._folder, each), each.model) for each in table.experts]
        prior = self._prior(table, [self._foreseen(model, theta) for theta in thetas])
        expert = expert_of(model, merge(thetas, prior, self.mix, base), self._choices, self.mix.name)
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


def _key(entry: Entry) -> str:
    return f"{entry.name} {entry.blake3} {entry.model.model_dump_json()}"


def _context(table: Table) -> int:
    """Tokens that every expert's context holds."""
    return min(each.model.context for each in table.experts)


def _codec(folder: Path, vocab: int, chosen: str) -> Codec:
    file = Path(chosen) if chosen else folder / TOKENIZER_FILE
    if chosen == BYTE_TOKENS or (not chosen and not file.exists() and vocab <= BYTES):
        return Bytes()
    if not chosen and not file.exists():
        raise LocalError(
            f"the experts have {vocab:,} tokens, and {folder} has no {TOKENIZER_FILE}: name the one of the family's "
            f"data with --tokenizer"
        )
    codec = Tokenized(read_tokenizer(file), frozenset(), special=False, what=str(file))
    if codec.size > vocab:
        raise LocalError(f"{file} has {codec.size:,} tokens, and the experts {vocab:,}")
    return codec


def _windows(path: str, codec: Codec, limit: int) -> tuple[Window, ...]:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LocalError(f"cannot read the text for the prior, {path}: {error.strerror}") from error
    windows = last_windows(codec.encode(text, special=False), limit)
    if not windows:
        raise LocalError(f"the text for the prior, {path}, has no two tokens: name a longer one with --prior")
    return windows
