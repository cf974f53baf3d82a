"""Whether contributions to a round are still of use: whoever is about to send one looks, in any thread.

They are until the round is over: from then on what they are made from may change, too.
"""

from __future__ import annotations


class Wanted:
    """Those of one round."""

    def __init__(self) -> None:
        self._is_over = False

    def contributions(self) -> bool:
        """Whether they are."""
        return not self._is_over

    def give_up(self) -> None:
        """The round is over, or nothing comes of it here."""
        self._is_over = True
