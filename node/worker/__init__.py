"""The process that trains, and how the daemon starts it, talks to it and watches it."""
