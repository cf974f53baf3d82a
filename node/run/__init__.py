"""Runs: those that a node is in, how it comes into one, and what one does from round to round."""
