"""Experts on other peers: a process that answers for them, one that asks, and between them their nodes.

    server ─ Unix socket ─ its node ──── network ──── a node ─ Unix socket ─ a process with the model

- `rows`, `tenants`, `turns`, `replicas` and `texts` decide, without clock, socket or thread.
- `switchboard` is in the daemon: it passes questions on, and knows for which files a process here answers.
- `answering` is the process that answers, `remote` the expert that an ensemble asks (serve/expert.py), over `line`.
"""
