"""The worker's side: the process that trains a run's model. The daemon's side is node/supervisor."""
