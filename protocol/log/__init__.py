"""The agreed log: what a run decides, entry by entry (docs/log.md)."""
