"""Experts on pictures behind OpenAI's /v1/images/generations, or as a file."""
