"""An archive for whoever looks into a problem of a node: what is put in, and what is taken out again before that."""
