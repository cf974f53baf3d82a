"""Inference: a trained model behind OpenAI's HTTP API, or writing to a terminal. See docs/inference.md.

source -> Served: a scorer, its text codec, a name      source, folder, text, chat
scorer: next-token log-probabilities of many sequences  scorer (the interface), decoder, local, library
experts: what an ensemble asks, and scorers of scorers  expert (the interface), ensemble/
batch:  whose turn it is, token by token                sampling, stops, sequence, batch; no clock, no thread
engine: a thread around a batch, asyncio in front       engine
HTTP:   OpenAI's shapes                                 body, requests, shapes, listing, routes, metrics, app
"""
