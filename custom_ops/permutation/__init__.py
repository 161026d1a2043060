"""Pseudo-random permutations, one element at a time."""
