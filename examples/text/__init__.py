"""What the recipes for text share: text, token streams, tables, LSTMs, losses, training."""
