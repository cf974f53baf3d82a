"""Codecs: how a chunk's fp32 values become bytes on their way to its owner and back; in `feedback`, what they leave."""

from __future__ import annotations

from shoal.protocol.compression.base import Codec, Payload
from shoal.protocol.compression.bf16 import Bf16
from shoal.protocol.compression.fedzip import FedZip
from shoal.protocol.compression.fp4 import Fp4
from shoal.protocol.compression.fp16 import Fp16
from shoal.protocol.compression.fp32 import Fp32
from shoal.protocol.compression.int8 import Int8
from shoal.protocol.compression.sign import Sign
from shoal.protocol.compression.topk import TopK
from shoal.protocol.compression.uint8 import Uint8
from shoal.protocol.errors import LocalError

_ALL: tuple[Codec, ...] = (Fp32(), Fp16(), Bf16(), Int8(), Uint8(), Fp4(), Sign(), TopK(), FedZip())
CODECS = {each.name: each for each in _ALL}


def codec(name: str) -> Codec:
    """The codec that a manifest names."""
    if name not in CODECS:
        raise LocalError(f"unknown codec '{name}'; known are {', '.join(CODECS)}")
    return CODECS[name]


__all__ = ["CODECS", "Codec", "Payload", "codec"]
