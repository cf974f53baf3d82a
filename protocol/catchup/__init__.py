"""How a newcomer gets the state: who gives it (donor.py) and who takes it (transfer.py). Pure."""
