"""Byte streams to peers for asyncio, and frames on them."""
