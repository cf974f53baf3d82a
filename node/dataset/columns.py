"""Which columns of tables a dataset is read from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of tables are read; without `text`, a table is a file like any other."""

    text: str = ""
    domain: str = ""  # says where a row belongs, as a word or number; empty: nothing does

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def wanted(self) -> list[str]:
        """The names of all."""
        return [self.text, self.domain] if self.domain else [self.text]

    @property
    def words(self) -> str:
        """Their names, in a sentence."""
        return " and ".join(f"a column {column!r}" for column in self.wanted)


NO_COLUMNS = Columns()
