"""EmbRace's vertical scheduling: gradients of rows that the next batch does not read travel later."""
