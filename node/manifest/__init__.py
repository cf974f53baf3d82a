"""A run's manifest: its tables, their checks and canonical bytes, and what a run needs, estimated from it."""
