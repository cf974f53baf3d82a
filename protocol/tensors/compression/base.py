"""The interface of codecs, which turn fp32 values into bytes and back, chunk by chunk.

- Sizes are known beforehand: `bytes_for(n)` is exact, or the maximum for codecs whose size depends on the values. A
  payload of an impossible size is refused unread, by `fits`.
- `peak` is total: for any bytes it either raises PayloadError, or `decode` and `add` accept them and give finite
  values. So a sum can be checked before it is changed; `decode` and `add` do not check again.
- `decode` gives the same bits on every machine: single multiplications in a fixed order, and no denormal
  results of its own making, which some processors and libraries flush to zero. `encode` need not: a value near the
  middle between two codes may become one code on one machine and the other on another.
- `encode` returns a copy: the payload is kept under its hash while the vector it came from changes. It may be any kind
  of buffer that nobody writes to.
- Codecs keep no state between calls; each may be used by several threads at once. Error feedback is the caller's: see
  methods/sparseloco.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import isfinite

import numpy as np
import numpy.typing as npt
from torch import Tensor

from shoal.protocol.base.errors import LocalError, PayloadError
from shoal.protocol.base.wire import Payload as Payload


class Codec(ABC):
    """One way to write a chunk."""

    name: str
    """Its name in the manifest."""

    block: int
    """Values that are encoded together; chunks are cut at multiples of it."""

    @abstractmethod
    def bytes_for(self, n: int) -> int:
        """The size of the payload of `n` values, or the most that it may be."""

    def fits(self, size: int, n: int) -> bool:
        """Whether a payload of `n` values may have `size` bytes."""
        return size == self.bytes_for(n)

    @abstractmethod
    def encode(self, values: Tensor) -> Payload:
        """The payload of a contiguous vector of finite fp32 values; raises LocalError if one is NaN or infinite."""

    def encode_view(self, values: Tensor) -> Payload:
        """As `encode`, but the payload may be the memory of `values`, which then must not change while it lives.

        The caller has checked that they are finite.
        """
        return self.encode(values)

    @abstractmethod
    def peak(self, payload: Payload, n: int) -> float:
        """A bound on the magnitudes in a payload of `n` values; raises PayloadError if the payload is invalid."""

    @abstractmethod
    def decode(self, payload: Payload, n: int, out: Tensor | None = None) -> Tensor:
        """The `n` values of a payload that `peak` has checked, as a new fp32 vector or in `out`."""

    @abstractmethod
    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        """Add `weight` times the values of a payload that `peak` has checked to `total`, of the same length."""


def is_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite; one pass and no temporary, because NaN wins min and max."""
    if not values.numel():
        return True
    low, high = values.aminmax()
    return isfinite(low.item()) and isfinite(high.item())


def divergence_error() -> LocalError:
    """The error for NaN or infinity among our own values, which must not be sent."""
    return LocalError("the vector to send holds NaN or Inf; training has diverged on this machine", code="diverged")


def read_only(payload: npt.NDArray[np.uint8]) -> Payload:
    """The memory of an array that nobody writes to any more, as a payload."""
    return payload.data.toreadonly()


def require_size(codec: Codec, payload: Payload, n: int) -> None:
    """PayloadError if the payload cannot be that of `n` values."""
    if not codec.fits(len(payload), n):
        raise PayloadError(f"{codec.name} payload of {len(payload)} bytes for {n} values")
