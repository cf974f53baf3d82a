"""Stop sequences: text goes out as it is made, but never a part of what may become one of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Looks for the first of several strings in a text that comes in parts."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [each for each in stops if each]
        self._held = ""
        self.found = False  # whether the text has ended with one

    def push(self, text: str) -> str:
        """What of the text so far can go out now; nothing more once one is found."""
        if self.found:
            return ""
        self._held += text
        places = [place for place in (self._held.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.found = True
            return self._let_go(min(places))
        return self._let_go(len(self._held) - self._begun())

    def flush(self) -> str:
        """What was held back, when the text ends otherwise."""
        return "" if self.found else self._let_go(len(self._held))

    def _let_go(self, count: int) -> str:
        out, self._held = self._held[:count], self._held[count:]
        return out

    def _begun(self) -> int:
        """Characters at the end that begin one of the strings."""
        most = max((len(stop) - 1 for stop in self._stops), default=0)
        for count in range(min(most, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0
