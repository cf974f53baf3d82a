"""What a run learns from: text, tokens, pictures, and who gets which part of them.

files, tables, texts    a person's files, as the texts of a dataset, and these packed into one stream of bytes
pieces, store           the stream cut into pieces under a tree of hashes, and the datasets on this node's disk
fetch, supply           a dataset got from other members, given to them, and what the node's runs see of all this
corpus                  what is trained on and what is held out; chosen: which texts a run is about
tokens, text            a run's tokens for training, and those of any model for what is generated
stream, hub             datasets of the hub that are read while they are trained on
partition, clusters     groups of like samples
pictures, digits        pictures
lanes                   which tokens a member reads in a step
"""
