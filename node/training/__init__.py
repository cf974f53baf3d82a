"""Training on one machine, from the data to checkpoints; no network."""
