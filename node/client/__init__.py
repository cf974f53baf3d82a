"""Who asks a node: the command line, `shoal up` and its report, and scripts of one's own."""
