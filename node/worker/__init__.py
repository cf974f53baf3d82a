"""The worker: the process that trains a run's model. The daemon's side of it is node/supervisor."""
