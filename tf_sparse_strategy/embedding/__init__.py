"""Embedding tables divided by columns over the workers: docs/embedding.md."""
