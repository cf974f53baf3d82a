"""Who is in a run and who is alive: SWIM as a core (membership.py is the machine). Pure."""
