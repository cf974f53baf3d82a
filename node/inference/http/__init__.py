"""OpenAI's HTTP API: errors < body < requests < answers < routes; middleware < metrics; server puts all together."""
