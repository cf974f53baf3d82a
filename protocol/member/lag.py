"""How far a member is behind that applies the results since its state, and whether it ever gets there so."""

from __future__ import annotations

TIMES = 2  # a member gives up when this many times as many results are ahead of it as at first
FEW = 8  # fewer results than this at first count as this many
SETTLING = 10.0  # seconds before that: results may fail to come for another reason, such as a lost message
MOST_DOUBLINGS = 3


class Lag:
    """Looked at whenever the member learns that others are ahead of it."""

    def __init__(self) -> None:
        self._at_first: int | None = None  # results ahead of it when it began to apply them
        self._since = 0.0
        self._states = 0  # that it has asked for as it got nowhere, since it last stood where the others do

    def begin(self) -> None:
        """Another state is here, and the results since are to be applied."""
        self._at_first = None

    def end(self) -> None:
        """The member stands where the others do."""
        self._at_first, self._states = None, 0

    def is_hopeless(self, now: float, behind: int, is_reading: bool) -> bool:
        """Whether so many results `behind` are more than there can be if the member applies them as fast as they come.

        Each state that it gets costs its donors a transfer, so twice as many must be ahead of it before the next. What
        it is behind at first is known once it has read the log to its end.
        """
        if self._at_first is None:
            if is_reading:
                return False
            self._at_first, self._since = behind, now
        bound = TIMES * max(self._at_first, FEW) * 2 ** min(self._states, MOST_DOUBLINGS)
        return behind > bound and now - self._since >= SETTLING

    def give_up(self) -> None:
        """The member gets a later state instead."""
        self._states += 1
