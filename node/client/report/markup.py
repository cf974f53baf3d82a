"""Builds HTML and SVG as a tree, so that all content is escaped and every tag is closed."""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

Content = Element | str | None


def tag(name: str, /, *content: Content, **attributes: object) -> Element:
    """An element; `class_` gives `class`, other underscores become hyphens, an attribute of None is left out."""
    element = Element(name, {_name(key): _value(value) for key, value in attributes.items() if value is not None})
    for each in content:
        add(element, each)
    return element


def add(element: Element, content: Content) -> None:
    """Append an element, or text after what is there."""
    if isinstance(content, str):
        text = printable(content)
        if len(element):
            element[-1].tail = (element[-1].tail or "") + text
        else:
            element.text = (element.text or "") + text
    elif content is not None:
        element.append(content)


def to_html(root: Element) -> str:
    """The tree as a document."""
    return "<!DOCTYPE html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def printable(text: str) -> str:
    """`text` with U+FFFD in place of characters that no document may contain: controls, lone surrogates."""
    return "".join(each if each in "\n\t" or each.isprintable() or each == "\u00a0" else "\ufffd" for each in text)


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else printable(str(value))
