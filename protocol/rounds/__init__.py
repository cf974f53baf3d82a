"""The rounds of a run, one after the other (rounds.py); the folders hold what a round consists of. Pure."""
