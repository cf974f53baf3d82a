"""Going: when a member of a run has said all that is to be said."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.base.effects import Event


@dataclass(frozen=True, slots=True)
class Parted(Event):
    """We have gone: what was to be said has been said, and we are silent."""
