"""What every part of a node uses: its home, options, logs, disk, threads, and texts for people."""
