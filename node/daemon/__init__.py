"""The daemon: one process that owns the identity, the network and the runs of this machine."""
