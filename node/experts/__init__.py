"""Families of experts, which are trained independently of each other, and mixed or merged when they are used."""
