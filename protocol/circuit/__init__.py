"""Circuit relay v2: a public peer passes on, within limits, what two others say to each other who cannot be dialled.

https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md. libp2p's own keeps one circuit for each
listener, so that one dialler who hangs up cuts off all others, and knows no limit of rate.
"""
