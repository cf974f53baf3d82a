"""The text of a run of `files` as a dataset: one packed stream, named by its digest, that members give each other.

texts     which files are text, and in which order
pack      all texts as one stream of bytes; its digest is the dataset's name
pieces    the stream in pieces, and the tree of hashes by which each is checked as it comes
store     the datasets on this node's disk, under its home
plan      who is asked for which piece: the core
fetch     its shell: calls, checks, the file
serve     our answers to those who ask us
supply    what the node's runs see of all this
"""
