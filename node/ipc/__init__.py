"""What a daemon and the processes beside it share: memory without a name, sockets, and the messages on them."""
