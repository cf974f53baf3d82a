"""The admin API, as its two ends share it: the daemon, which serves it, and the client, which calls it."""
