"""What the daemon and other processes of this machine share: unnamed memory, Unix sockets, and their messages."""
