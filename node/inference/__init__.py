"""Inference: a trained model behind OpenAI's HTTP API, or writing to a terminal. See docs/inference.md.

scorer            the interfaces: next-token log-probabilities of many sequences (Scorer), and what an ensemble asks
local, library    scorers: of our own decoder, and of models of transformers
models            a run's or an expert's parameters as a scorer, and its tokens
ensemble/         experts as one scorer: a folder of them, their merge, or a family that this node is in
live              a run that goes on as a scorer, which follows its commits
remote/           experts on other peers: those who ask, and those who answer
served, chat      what is served (Served): a scorer, its tokens, the format of its conversations
folder, source    what the user names, opened: to Served
engine/           whose turn it is, token by token; a thread around that
http/             OpenAI's API in front of the engine
"""
