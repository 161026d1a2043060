"""Numbers that the workers and the tables share."""

FEATURES, CLASSES, LAYERS = 64, 10, 8
BATCH = 16  # rows of each worker
CHECKED_STEPS = 5
TOLERANCE = 1e-5  # of weights of about 0.05, after sums of float32 in another order
