"""OpenAI's HTTP API: faults < body < requests; answers, routes; middleware, metrics; server has them all."""
