"""Byte streams to peers as asyncio sees them, and frames on them."""
