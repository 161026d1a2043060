"""One folder per recipe, each with the same files; convert/ and clusters/ belong to their documents."""
