"""What a step looks like: pictures of traces."""
