"""The daemon: the process that owns a node's identity, its network and its runs."""
