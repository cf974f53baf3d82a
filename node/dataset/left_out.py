"""What of a person's data a dataset lacks, or calls otherwise, and why: nothing is left out or altered in silence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

NAMED = 20  # places that are named for each reason, and domains; the others are counted
MAX_SHOWN = 100  # characters of a domain


@dataclass(slots=True)
class Places:
    """Where something was, by reason."""

    by_reason: dict[str, list[str]] = field(default_factory=dict)  # the first NAMED of each
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, place: str) -> None:
        """One more."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.by_reason.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(place)

    @property
    def total(self) -> int:
        """All, for whatever reason."""
        return sum(self.counts.values())

    def words(self, one: str, many: str) -> Iterator[str]:
        """A phrase for each reason: how many, why, and which."""
        for reason, named in self.by_reason.items():
            count = self.counts[reason]
            more = f" and {count - len(named):,} more" if count > len(named) else ""
            yield f"{count:,} {one if count == 1 else many} {reason}: {', '.join(sorted(named))}{more}"


@dataclass(slots=True)
class Domains:
    """By the names that domains have in the dataset, what the data call them."""

    called: dict[str, set[str]] = field(default_factory=dict)

    def add(self, name: str, called: str) -> None:
        """A row of it."""
        self.called.setdefault(name, set()).add(called)

    def words(self) -> Iterator[str]:
        """A phrase for each that the data call otherwise, or in several ways, which have become one."""
        altered = {name: called for name, called in self.called.items() if called != {name}}
        for name in sorted(altered)[:NAMED]:
            first = [repr(each[:MAX_SHOWN]) for each in sorted(altered[name])[:NAMED]]
            more = f" and {len(altered[name]) - NAMED:,} more" if len(altered[name]) > NAMED else ""
            yield f"the domain {name} is what the data call {', '.join(first)}{more}"
        if len(altered) > NAMED:
            yield f"{len(altered) - NAMED:,} more domains have other names than in the data"


@dataclass(slots=True)
class LeftOut:
    """Of one dataset. What is wrong with the data, rather than not for it, is an error instead."""

    files: Places = field(default_factory=Places)  # that give no text
    rows: Places = field(default_factory=Places)  # of tables
    hidden: Places = field(default_factory=Places)  # files and folders
    whole: Places = field(default_factory=Places)  # read as one text, although their names are those of tables
    nowhere: Places = field(default_factory=Places)  # rows that name no domain
    domains: Domains = field(default_factory=Domains)

    def words(self) -> list[str]:
        """All of it, in phrases."""
        return [
            *self.files.words("file was skipped, because it", "files were skipped, because each"),
            *self.rows.words("row was skipped, because it", "rows were skipped, because each"),
            *self.hidden.words("hidden file or folder", "hidden files and folders"),
            *self.whole.words("file", "files"),
            *self.nowhere.words("row is in the domain other, because it", "rows are in the domain other, because each"),
            *self.domains.words(),
        ]
