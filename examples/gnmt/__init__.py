"""GNMT: translation by LSTMs and attention."""
