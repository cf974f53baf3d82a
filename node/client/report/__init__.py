"""`report.html` and `loss.svg`: what one `shoal up` did, for people, made from its folder alone.

page (the document, `make_report`) <- charts, words <- phases <- read (metrics.jsonl as values), ledger (rounds as all
peers report them); plot and markup draw.
docs/metrics-jsonl.md says what is in metrics.jsonl.
"""
