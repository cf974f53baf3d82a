"""docs/manifest.md is what the schema says, and the schema says of every key what it means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from shoal.node.base.keys import Form, Help, allowed, figure, help_of, is_number, schemas
from shoal.node.manifest.document import document, tables
from shoal.node.manifest.experts import PartSpec
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.method import MethodName

ROOT = Path(__file__).parents[2]
NO_MORE_OR_LESS = {"seed", "side", "classes", "experts"}  # numbers that only differ, or that must fit others


def keys() -> Iterator[tuple[str, FieldInfo]]:
    """All keys of all tables that are no tables themselves."""
    written, filled_in = tables()
    for table in (*written, *filled_in):
        for name, field in table.schema.model_fields.items():
            if not [*schemas(field.annotation)]:
                yield f"{table.title}: {name}", field


def test_the_page_is_what_the_schema_says() -> None:
    assert (ROOT / "docs/manifest.md").read_text(encoding="utf-8") == document(), (
        "print it anew: python -m shoal.node.manifest.document > docs/manifest.md"
    )


def test_the_page_has_every_table_and_each_once() -> None:
    def within(schema: type[BaseModel]) -> Iterator[type[BaseModel]]:
        yield schema
        for field in schema.model_fields.values():
            for _, inner in schemas(field.annotation):
                yield from within(inner)

    written, filled_in = tables()
    found = [each.schema for each in (*written, *filled_in)]
    assert set(found) == set(within(Manifest))
    assert len(found) == len(set(found)) > 15
    assert {each.title for each in filled_in} == {
        "`[origin]`",
        "`[[model.tensors]]`",
        "`[data.cluster]`",
        "`[experts.parts.seed]`",
    }


def test_every_method_has_a_row() -> None:
    rows = document().split("## Settings by method")[1].split("# Tables")[0]
    assert [name for name in get_args(MethodName) if f"| `{name}` |" not in rows] == []
    assert "| `noloco` | `delay` half of `inner_steps`, `alpha` 0.5, `beta` 0.7, `gamma` 0.7 | `outer_lr` 1.0" in rows


@pytest.mark.parametrize(("key", "field"), [pytest.param(*each, id=each[0]) for each in keys()])
def test_every_key_says_what_it_means_and_what_more_or_less_of_it_changes(key: str, field: FieldInfo) -> None:
    help, name = help_of(field), key.rpartition(" ")[2]
    assert help is not None, "give it a Help (node/base/keys.py)"
    assert help.what[0].isupper()
    assert help.what.endswith(".")
    for change in (help.larger, help.smaller):
        assert not change or (change[0].islower() and not change.endswith("."))
    if is_number(field.annotation) and not help.is_filled_in:
        assert bool(help.larger) == bool(help.smaller) == (name not in NO_MORE_OR_LESS)
    if not is_number(field.annotation):
        assert (help.larger, help.smaller, help.unit) == ("", "", ""), "that is for numbers"


def test_whoever_reads_a_whole_number_reads_its_unit() -> None:
    lacking = [key for key, field in keys() if allowed(field.annotation, field.metadata).startswith("a whole number,")]
    assert [key for key in lacking if not key.endswith((": seed", ": number", ": first", ": round"))] == []


def test_no_key_shows_people_a_pattern() -> None:
    """Where a text must match a pattern, its form is said in words."""

    def constraints(hint: Any, metadata: list[Any]) -> Iterator[list[Any]]:
        metadata = [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
        yield metadata
        for inner in get_args(hint):
            own = list(getattr(inner, "__metadata__", ()))
            yield from constraints(getattr(inner, "__origin__", inner) if own else inner, own)

    found = {key: list(constraints(field.annotation, field.metadata)) for key, field in keys()}
    patterned = {key: each for key, every in found.items() for each in every if any(map(has_pattern, each))}
    assert len(patterned) > 10
    assert [key for key, each in patterned.items() if not any(isinstance(one, Form) for one in each)] == []


def has_pattern(constraint: Any) -> bool:
    return getattr(constraint, "pattern", None) is not None


def test_every_table_says_what_it_is() -> None:
    written, filled_in = tables()
    assert [each.title for each in (*written, *filled_in) if len(each.schema.__doc__ or "") < 20] == []


Size = Annotated[int, Field(ge=1), Help("How many.", unit="bytes")]


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "a whole number"),
        (bool, "true or false"),
        (str, "a text"),
        (Size, "a whole number of bytes, at least 1"),
        (Annotated[Size | None, Help("How much.", unit="kilobytes")], "a whole number of kilobytes, at least 1"),
        (Annotated[float, Field(gt=0, lt=0.5)], "a number, more than 0 and less than 0.5"),
        (Annotated[int, Field(ge=-1, le=2**40)], "a whole number, from -1 to 2^40"),
        (Literal[1], "1"),
        (Literal["a", "b", "c"], 'one of "a", "b" or "c"'),
        (tuple[Literal["a", "b"], ...], 'a list, each "a" or "b"'),
        (tuple[float, float], "a list of 2, each a number"),
        (Annotated[str, Field(max_length=5)], "a text of at most 5 characters"),
        (Annotated[str, Field(min_length=5)], "a text of at least 5 characters"),
        (Annotated[str, Field(pattern="^x$"), Form("an x")], "an x"),
        (Annotated[str, Field(pattern="^x$")], "a text that matches ^x$"),
        (dict[str, int], "a table"),
        (Path, ""),
        (PartSpec, "a table"),
    ],
)
def test_what_a_value_may_be_is_said_in_words(hint: Any, words: str) -> None:
    assert allowed(hint) == words


def test_bounds_are_short() -> None:
    assert [figure(each) for each in (0, 1_000_000, 2**40, 2**40 + 1, 0.5, 1e-12)] == [
        *("0", "1,000,000", "2^40", "1,099,511,627,777", "0.5", "1e-12")
    ]
