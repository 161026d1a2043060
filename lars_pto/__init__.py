"""LARS and LAMB, and the parallel tensor operator that divides layer-wise work over workers."""
