"""Makes reports, which are pages for browsers, from files alone.

Of one `shoal up`, `report.html` and `loss.svg`: page (the document, `make_report`) <- charts, words <- story
(metrics.jsonl as values). Of a node, a page for each run: node_page <- node_story (the files in a node's home). plot
and markup draw. docs/metrics-jsonl.md describes metrics.jsonl.
"""
