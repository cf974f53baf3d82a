"""What the admin API is, for both of its ends: the daemon, which serves it, and the client, which calls it."""
