"""The clients of a node: the command line, `shoal up` and its report, and users' training scripts."""
