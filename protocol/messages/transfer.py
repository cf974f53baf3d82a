"""State transfer: the chain of certified rounds, one pinned version of the state, its chunks by hash."""

from __future__ import annotations
