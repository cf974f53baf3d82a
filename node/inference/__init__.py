"""Inference: a trained model behind OpenAI's HTTP API, or writing to a terminal. See docs/inference.md.

scorer            the interface: next-token log-probabilities of many sequences
local, library    scorers of Shoal's own decoder, and of models of transformers
models            the parameters of a run or an expert as a scorer, and its vocabulary
ensemble/         many experts as one scorer: a folder of experts, their merge, or a family that this node is in
live              a scorer that follows the commits of a run that is still training
remote/           experts on other peers: the process that asks them, and the process that answers
served, chat      what is served (Served): a scorer, its vocabulary, the format of its conversations
folder, source    open what the user names, as a Served
engine/           continuous batching, and the thread that it runs in
http/             OpenAI's API in front of the engine
"""
