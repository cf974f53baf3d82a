"""The rounds of a run: what members contribute is averaged by owners, and the log decides which means count."""
