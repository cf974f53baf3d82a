"""How the flat vector of a reduction is cut into chunks: by the manifest alone, so that all members agree."""

from __future__ import annotations

from collections.abc import Callable

FLOAT_BYTES = 4
PARTS = 32  # chunks that keep all busy: an owner adds one, while others come and go
LEAST_BYTES, MOST_BYTES = 256 << 10, 8 << 20  # of fp32
MOST_PAYLOAD = 4 << 20  # bytes
SAMPLE = 1 << 20  # values


def chunk_bounds(size: int, chunk_bytes: int, block: int = 1) -> list[tuple[int, int]]:
    """Half-open element ranges that cover `size` fp32 values, each about `chunk_bytes` long in fp32.

    All but the last are multiples of `block`, the codec's unit, so that no block straddles two chunks.
    """
    step = max(block, chunk_bytes // FLOAT_BYTES // block * block)
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def fitting_bytes(size: int, bytes_for: Callable[[int], int]) -> int:
    """How long the chunks of `size` fp32 values should be, in bytes of fp32: a power of two.

    `bytes_for` is the scatter codec's. Each message costs every member the same, whatever is in it, so chunks are as
    large as leaves enough of them; but on a slow line the last one of each takes its time alone, and what is lost is
    sent again as a whole.
    """
    ratio = bytes_for(SAMPLE) / (FLOAT_BYTES * SAMPLE)
    wanted = min(max(FLOAT_BYTES * size / PARTS, LEAST_BYTES), MOST_PAYLOAD / ratio, MOST_BYTES)
    return 1 << (int(wanted).bit_length() - 1)
