"""Arithmetic on vectors: codecs, weighted means, and the memory that both use."""
