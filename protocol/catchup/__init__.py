"""How a newcomer gets the state: the donor's side (donor.py) and the joiner's (transfer.py). Pure."""
