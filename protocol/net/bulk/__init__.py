"""Transfer of payloads between peers: on TCP sockets of their own where possible, else on libp2p streams."""
