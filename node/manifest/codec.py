"""The codecs that a manifest may name, with what can be said of them without loading torch.

The codecs themselves are in protocol/tensors/compression, whose table has the same names. A test checks that, and that
each codec writes as many bytes as are counted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RunCodec = Literal["fp32", "fp16", "bf16", "int8", "fp4", "topk"]


@dataclass(frozen=True, slots=True)
class CodecFacts:
    """What is shown about a codec before a run is joined."""

    value_bytes: float  # bytes on the wire for one number: its code, and its share of the block's header
    words: str  # how values are sent, in words for people


CODECS: Mapping[RunCodec, CodecFacts] = {
    "fp32": CodecFacts(4, "in full"),
    "fp16": CodecFacts(2 + 2 / 1024, "in 16 bits"),
    "bf16": CodecFacts(2, "in 16 bits"),
    "int8": CodecFacts(1 + 4 / 1024, "in 8 bits"),
    "fp4": CodecFacts(0.5 + 4 / 1024, "in 4 bits"),
    "topk": CodecFacts(120 / 4096, "sparsely, in about 1/4 bit"),
}
SPARSELOCO_CODECS = ("topk", "fp32")  # codecs that change nothing in values that the method has already made sparse
WEIGHT_CODECS = ("fp32", "fp16", "bf16")  # codecs that are precise enough for weights that are trained on
RESEARCH_CODECS = ("uint8", "sign", "fedzip")  # see node/lab/codecs; no later codec of a run may have such a name
