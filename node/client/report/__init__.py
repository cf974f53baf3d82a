"""Makes `report.html` and `loss.svg`: what one `shoal up` did, for people, from the files in its folder alone.

page (the document, `make_report`) <- charts, words <- story (metrics.jsonl as values); plot and markup draw.
docs/metrics-jsonl.md describes metrics.jsonl.
"""
