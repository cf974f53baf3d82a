"""Families of experts: they are trained independently of each other, and mixed or merged when they are used."""
