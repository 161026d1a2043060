"""Handwritten digits: the smallest real training run."""
