"""The daemon, its command line and HTTP API, the worker, and the training code."""
