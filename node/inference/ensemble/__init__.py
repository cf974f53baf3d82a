"""An ensemble of experts as one scorer: a folder of experts, their merge, or a family. See docs/inference.md.

belief     how much one sequence trusts each expert; no clock, no thread
panel      the experts that are available, and their prior
ensemble   the scorer over them
table      reads ensemble.json, and checks the files that it names
folder     serves a folder of experts, or merges it into a checkpoint
family     serves a family that this node is in
"""
