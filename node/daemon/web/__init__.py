"""The node's HTTP server: the JSON API, the page and its events, the metrics."""
