"""Experts that are trained apart from each other, and what one model is made of them when it is used."""
