"""Who is in a run and who is alive: SWIM as a core, with membership.py as its state machine. Pure."""
