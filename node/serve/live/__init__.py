"""A run that goes on as a source: the newest committed weights for each new text, the old ones for those under way."""
