"""Codecs: how a chunk's fp32 values become bytes on their way to its owner and back."""

from __future__ import annotations

from shoal.protocol.base.errors import LocalError
from shoal.protocol.tensors.compression.base import Codec, Payload
from shoal.protocol.tensors.compression.bf16 import Bf16
from shoal.protocol.tensors.compression.fp4 import Fp4
from shoal.protocol.tensors.compression.fp16 import Fp16
from shoal.protocol.tensors.compression.fp32 import Fp32
from shoal.protocol.tensors.compression.int8 import Int8
from shoal.protocol.tensors.compression.topk import TopK

_ALL: tuple[Codec, ...] = (Fp32(), Fp16(), Bf16(), Int8(), Fp4(), TopK())
CODECS = {each.name: each for each in _ALL}


def codec(name: str) -> Codec:
    """The codec that a manifest names."""
    if name not in CODECS:
        raise LocalError(f"unknown codec '{name}'; known are {', '.join(CODECS)}", code="unknown-name")
    return CODECS[name]


__all__ = ["CODECS", "Codec", "Payload", "codec"]
