"""The daemon's side of a worker: it starts workers, watches them, gives them orders, and starts them again."""
