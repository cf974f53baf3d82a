"""What the operating system gives: ports, files, interfaces, names, threads, keys on disk."""
