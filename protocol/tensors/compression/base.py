"""The interface of codecs, which turn fp32 values into bytes and back, chunk by chunk.

- Sizes are known beforehand: `bytes_for(n)` is exact, so a payload of another size is refused unread. For codecs whose
  size depends on the values it is the maximum, and longer payloads are refused unread. `fits` tells.
- `peak` is total: for any bytes it either raises PayloadError, or `decode` and `add` accept them and give finite
  values. So a sum can be checked before it is changed; `decode` and `add` do not check again.
- `decode` gives the same bits on every machine: single multiplications in a fixed order, and no denormal
  results of its own making, which some processors and libraries flush to zero. `encode` need not: a value near the
  middle between two codes may become one on this machine and the other on that.
- `encode` returns its own copy: the payload is kept under its hash while the vector it came from changes. It may be any
  kind of buffer that nobody writes to.
- Codecs keep no state between calls; each may be used by several threads at once. Error feedback is the caller's: see
  methods/sparseloco.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import isfinite
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from shoal.protocol.base.errors import LocalError, PayloadError
from shoal.protocol.base.wire import Payload as Payload


class Codec(Protocol):
    """One way to write a chunk."""

    @property
    def name(self) -> str:
        """Its name in the manifest."""
        ...

    @property
    def block(self) -> int:
        """Values that are encoded together; chunks are cut at multiples of it."""
        ...

    def bytes_for(self, n: int) -> int:
        """The size of the payload of `n` values, or the most that it may be."""
        ...

    def fits(self, size: int, n: int) -> bool:
        """Whether the payload of `n` values may be of `size` bytes."""
        ...

    def encode(self, values: Tensor) -> Payload:
        """The payload of a contiguous vector of finite fp32 values; LocalError if one is NaN or infinite."""
        ...

    def lend(self, values: Tensor) -> Payload:
        """The same, but it may be the very memory of `values`, which must not change as long as the payload lives.

        Then nobody looks whether they are finite: whoever lends them has done so.
        """
        ...

    def peak(self, payload: Payload, n: int) -> float:
        """A bound on the magnitudes in the payload of `n` values; PayloadError if it is not one."""
        ...

    def decode(self, payload: Payload, n: int, out: Tensor | None = None) -> Tensor:
        """The `n` values of a payload, as a new fp32 vector or in `out`; `peak` has found nothing wrong with it."""
        ...

    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        """Add `weight` times its values to `total`, of the same length; `peak` has found nothing wrong with it."""
        ...


class Copying(ABC):
    """A codec that writes what it encodes to memory of its own."""

    @abstractmethod
    def bytes_for(self, n: int) -> int:
        """See Codec."""

    def fits(self, size: int, n: int) -> bool:
        """See Codec."""
        return size == self.bytes_for(n)

    @abstractmethod
    def encode(self, values: Tensor) -> Payload:
        """See Codec."""

    def lend(self, values: Tensor) -> Payload:
        """See Codec."""
        return self.encode(values)


def is_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite; one pass and no temporary, because NaN wins min and max."""
    if not values.numel():
        return True
    low, high = values.aminmax()
    return isfinite(low.item()) and isfinite(high.item())


def diverged() -> LocalError:
    """The error for NaN or infinity among our own values, which must not be sent."""
    return LocalError("the vector to send holds NaN or Inf; training has diverged on this machine")


def sealed(payload: npt.NDArray[np.uint8]) -> Payload:
    """An array that nobody writes to any more, as it lies there."""
    return payload.data.toreadonly()


def require_size(codec: Codec, payload: Payload, n: int) -> None:
    """PayloadError if the payload cannot be that of `n` values."""
    if not codec.fits(len(payload), n):
        raise PayloadError(f"{codec.name} payload of {len(payload)} bytes for {n} values")
