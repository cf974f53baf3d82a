"""XML that a stranger wrote, read with the standard library's expat into the little of it that is used here.

Rules: no document type, and so no entity but the five that XML has; bounded size, depth and number of elements; names
lose their namespaces, and attributes are dropped. Whatever breaks a rule is a GatewayError. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from shoal.node.gateway.values import GatewayError

MAX_BYTES = 64 << 10
MAX_DEPTH, MAX_ELEMENTS = 32, 1024


@dataclass(slots=True)
class Element:
    """An element with its text and what is in it."""

    name: str
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def every(self, name: str) -> Iterator[Element]:
        """All elements of this name, itself included."""
        if self.name == name:
            yield self
        for child in self.children:
            yield from child.every(name)

    def first(self, name: str) -> str:
        """The text of the first one of this name; empty if there is none."""
        return next((each.text.strip() for each in self.every(name)), "")


def read(document: bytes) -> Element:
    """The root element."""
    if len(document) > MAX_BYTES:
        raise GatewayError("the router's XML is too long")
    builder = _Builder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # ValueError and LookupError: of an encoding
        raise GatewayError(f"the router's XML is none: {error}") from error
    return builder.root.children[0]


class _Builder:
    def __init__(self) -> None:
        self.root = Element("")
        self._open = [self.root]
        self._count = 0

    def refuse(self, *declared: object) -> None:
        raise GatewayError("the router's XML declares a document type, which may hold anything")

    def start(self, name: str, attributes: object) -> None:
        self._count += 1
        if self._count > MAX_ELEMENTS or len(self._open) > MAX_DEPTH:
            raise GatewayError("the router's XML has too many elements")
        element = Element(name.rpartition(" ")[2])
        self._open[-1].children.append(element)
        self._open.append(element)

    def end(self, name: str) -> None:
        self._open.pop()

    def text(self, text: str) -> None:
        self._open[-1].text += text
