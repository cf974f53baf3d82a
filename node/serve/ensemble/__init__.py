"""An ensemble of experts as one scorer: a folder of them, or their merge. See docs/inference.md.

table, weights:  ensemble.json and the files that it names, checked     table, weights
panel:           the experts that are there, with their prior           panel, prior, merged
belief:          which of them one sequence believes, and how far       belief; no clock, no thread
ensemble:        the scorer over them                                   ensemble, side_by_side
source:          the folder, as something to serve, and looked at again
"""
