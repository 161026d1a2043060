"""Segmented norms: sums of squares of many tensors in one read."""
