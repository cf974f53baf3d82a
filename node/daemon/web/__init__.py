"""What a node shows over HTTP: the JSON API, the page and its events, the metrics."""
