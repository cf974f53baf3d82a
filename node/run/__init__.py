"""The runs of a node: how they are entered and left, and what one run does from round to round."""
