"""Reducers: how an owner makes one chunk out of what the contributors sent."""

from __future__ import annotations

from shoal.protocol.reduction.mean import MeanReducer

__all__ = ["MeanReducer"]
