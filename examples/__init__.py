"""One folder per recipe; common/ is what they share, convert/ and clusters/ belong to documents."""
