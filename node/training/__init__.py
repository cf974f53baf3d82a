"""Everything that trains, from the data to a checkpoint; no network."""
