"""One folder per recipe, each with the same files; convert/ and clusters/ belong to documents of those names."""
