"""What the lines of convergence.py come to: means over seeds, shares of the gap, bytes, and tables of them in Markdown.

`gap` is how much of the way from *alone* to *joined* was recovered, of the same seed (node/client/up/measuring.py).
Bytes are those of one worker, per parameter and per thousand tokens that it trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kit.convergence_run import Line
from kit.recipes import ALONE, CHOSEN, GRIDS, INNER_STEPS, JOINED, REFERENCES
from shoal.node.client.up.measuring import References

PER = 1000  # tokens


@dataclass(frozen=True, slots=True)
class Over:
    """A figure's mean over seeds, and how far it goes."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Over:
        """Of one or more values."""
        return cls(sum(values) / len(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One method, or one reference."""

    name: str
    seeds: int
    loss: Over  # of the averaged model
    gap: Over | None  # None without references
    replica: float  # loss of a replica, on average over replicas and seeds
    apart: float  # the greatest difference between two replicas' losses, on average over seeds
    contributed: float
    answered: float
    sent: float
    greatest: float  # bytes sent per parameter in the greatest exchange


def rows(lines: Sequence[Line]) -> list[Row]:
    """Of each name that has lines, in the order of the recipes. Seeds whose training failed are left out."""
    done = [line for line in lines if line["loss"] is not None]
    by_name = {name: {line["seed"]: line for line in done if line["name"] == name} for name in CHOSEN}
    return [_row(name, seeds, by_name) for name, seeds in by_name.items() if seeds]


def _row(name: str, seeds: Mapping[int, Line], by_name: Mapping[str, Mapping[int, Line]]) -> Row:
    lines = list(seeds.values())
    gaps = [
        gap
        for seed, line in seeds.items()
        if seed in by_name[ALONE] and seed in by_name[JOINED]
        if (gap := _references(by_name, seed).gap_recovered(line["loss"])) is not None
    ]

    def mean(key: str) -> float:
        return sum(float(line[key]) / int(line["tokens"]) * PER for line in lines) / len(lines)

    return Row(
        name,
        len(lines),
        Over.of([line["loss"] for line in lines]),
        Over.of(gaps) if gaps else None,
        sum(sum(line["replicas"]) / len(line["replicas"]) for line in lines) / len(lines),
        sum(max(line["replicas"]) - min(line["replicas"]) for line in lines) / len(lines),
        mean("contributed"),
        mean("answered"),
        mean("sent"),
        max(line["greatest"] for line in lines),
    )


def _references(by_name: Mapping[str, Mapping[int, Line]], seed: int) -> References:
    return References(by_name[ALONE][seed]["loss"], by_name[JOINED][seed]["loss"])


def results(table: Sequence[Row]) -> str:
    """Losses, gaps and bytes, in Markdown."""
    head = "| | validation loss | gap recovered | replicas | contributed | answered | sent | greatest |"
    unit = next((row.greatest for row in table if row.name == "diloco"), None)
    return "\n".join([head, "|---" * 8 + "|", *(_result(row, unit) for row in table)])


def _result(row: Row, unit: float | None) -> str:
    gap = "" if row.gap is None else f"{row.gap.mean:.3f} ({row.gap.low:.3f} to {row.gap.high:.3f})"
    together = row.name in REFERENCES or row.apart == 0
    apart = "" if together else f"{row.replica:.3f}, {row.apart:.3f} apart"
    traffic = (row.contributed, row.answered, row.sent)
    cells = [
        f"*{row.name}*" if row.name in REFERENCES else f"`{row.name}`",
        f"{row.loss.mean:.4f} ± {(row.loss.high - row.loss.low) / 2:.4f}",
        "" if row.name in REFERENCES else gap,
        apart,
        *("" if row.name in REFERENCES else f"{each:.3g}" for each in traffic),
        f"{row.greatest / unit:.2f}" if unit and row.name not in REFERENCES else "",
    ]
    return "| " + " | ".join(cells) + " |"


def settings() -> str:
    """What was chosen, and among what, in Markdown."""
    lines = ["| | chosen | of |", "|---" * 3 + "|"]
    for name, recipe in CHOSEN.items():
        chosen = recipe if name in REFERENCES else {"inner_steps": INNER_STEPS, **recipe}
        tried = ", ".join(f"{key} {' '.join(f'{each:g}' for each in row)}" for key, row in GRIDS[name].items())
        lines.append(f"| {name} | {', '.join(f'{key} {value:g}' for key, value in chosen.items())} | {tried} |")
    return "\n".join(lines)


def best(lines: Sequence[Line]) -> dict[str, Line]:
    """Of each name the line with the lowest loss; a training that failed loses to any other."""
    found: dict[str, Line] = {}
    for line in sorted(lines, key=lambda each: (each["loss"] is None, each["loss"] or 0.0)):
        found.setdefault(line["name"], line)
    return found
