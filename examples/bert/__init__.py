"""BERT for question answering: where in a text the answer stands."""
