"""The daemon's side of a worker: it is started, watched, told what to do, and started again."""
