"""The other nodes: how they are found and reached, and how they reach this one."""
