"""One peer's part in one run, as one machine: membership, rounds and catching up. Pure."""
