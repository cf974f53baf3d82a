"""The data of a run: text and its tokens, how members get it, and which member reads which part.

files, tables, texts    reading a person's files as the texts of a dataset, and packing these into one stream of bytes
pieces, store           the stream's tree of hashes, and the datasets on this node's disk
fetch, supply           downloading a dataset from other members, and serving it to them
corpus, selection       the split into training and validation data; which of the texts a run is about
tokens, vocabulary      tokenizing a run's texts for training; encoding and decoding text for generation
hub, stream             downloads from Hugging Face's hub; its datasets that are read while they are trained on
partition, clusters     groups of like samples
lanes                   which tokens a member reads in a step
"""
