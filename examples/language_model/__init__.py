"""A language model nearly all of whose parameters are in two tables."""
