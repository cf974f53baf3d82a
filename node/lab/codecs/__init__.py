"""Codecs for research, which no run has; CODECS has them together with those of runs.

By the tables of docs/codecs.md and docs/performance.md none of them is worth it for a run: `uint8` is no closer than
`int8` and takes eight times as long to encode, `sign` sends four times as much as `topk`, and `fedzip` saves a quarter
of top-k's bytes for four to fourteen times the work.
"""

from __future__ import annotations

from shoal.node.lab.codecs.fedzip import FedZip
from shoal.node.lab.codecs.sign import Sign
from shoal.node.lab.codecs.uint8 import Uint8
from shoal.protocol.base.errors import LocalError
from shoal.protocol.tensors import compression
from shoal.protocol.tensors.compression import Codec

_RESEARCH: tuple[Codec, ...] = (Uint8(), Sign(), FedZip())
CODECS = {**compression.CODECS, **{each.name: each for each in _RESEARCH}}


def codec(name: str) -> Codec:
    """The codec of this name, a run's or one for research."""
    if name not in CODECS:
        raise LocalError(f"unknown codec '{name}'; known are {', '.join(CODECS)}", code="unknown-name")
    return CODECS[name]


__all__ = ["CODECS", "codec"]
