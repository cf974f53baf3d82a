"""The laboratory, a tool for research: many virtual workers train by a method in one process, without a network."""
