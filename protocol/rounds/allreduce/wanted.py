"""Which payloads of an attempt are still of use: whoever is about to send one looks, in any thread.

A contribution is of use until its round is over: from then on what it is made from may change, too. A mean stays of use
to whoever lacks it, unless the attempt has failed: then it stands in the way of the next one's.
"""

from __future__ import annotations


class Wanted:
    """Of one attempt."""

    def __init__(self) -> None:
        self._are_contributions = self._are_means = True

    def contributions(self) -> bool:
        """Whether what members have to add is."""
        return self._are_contributions

    def means(self) -> bool:
        """Whether what owners have made of it is."""
        return self._are_means

    def conclude(self) -> None:
        """The round is over."""
        self._are_contributions = False

    def give_up(self) -> None:
        """The attempt has failed, or another one has taken its place."""
        self._are_contributions = self._are_means = False
