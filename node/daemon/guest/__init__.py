"""The manners of a guest on somebody's machine: when the node pauses, how it does that, and what it says of its day."""
