"""One step of momentum in one pass over memory."""
