"""Access to the operating system: ports, files, network interfaces, host names, threads, keys on disk."""
