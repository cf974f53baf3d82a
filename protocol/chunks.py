"""How the flat vector of a reduction is cut into chunks: by the manifest alone, so that all members agree."""

from __future__ import annotations

FLOAT_BYTES = 4


def chunk_bounds(size: int, chunk_bytes: int, block: int = 1) -> list[tuple[int, int]]:
    """Half-open element ranges that cover `size` fp32 values, each about `chunk_bytes` long in fp32.

    All but the last are multiples of `block`, the codec's unit, so that no block straddles two chunks.
    """
    step = max(block, chunk_bytes // FLOAT_BYTES // block * block)
    return [(start, min(start + step, size)) for start in range(0, size, step)]
