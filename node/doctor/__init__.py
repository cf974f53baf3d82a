"""`shoal doctor PEER`: why a peer is reached as it is, or not at all; whose side it is, and what to do.

`who` is meant, `sources` say where it may be, `examination` tries, `weigh` measures, `verdict` says what follows, and
`answering` tells those who ask us. `desk` puts them together for the daemon; `show` is for the terminal.
"""
