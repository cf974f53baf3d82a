"""Of the carriers of payloads, one module at a time."""
