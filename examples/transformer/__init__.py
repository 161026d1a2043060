"""The Transformer for translation, its three tables not tied."""
