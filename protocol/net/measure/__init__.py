"""Measurements of links and paths, and the record of what was tried to reach peers; all without I/O."""
