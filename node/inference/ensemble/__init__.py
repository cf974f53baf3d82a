"""An ensemble of experts as one scorer: a folder of them, their merge, or a family. See docs/inference.md.

belief     which experts one sequence believes, and how far; no clock, no thread
panel      the experts that are there, and their prior
ensemble   the scorer over them
table      ensemble.json and the files that it names, checked
mix        how experts become one model
folder     a folder of experts as something to serve, or merged into a checkpoint
family     a family that this node is in, as something to serve
"""
