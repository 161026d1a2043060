"""Names that the experiments and the tables share."""

ADDITION, EAGERLY = "residual += grad", "mstopk through TensorFlow"
CHECKED = "check of grad, then residual += grad"  # what an update in place of the residual needs at least
INTO_GRAD = "into grad"  # what was its residual is its next gradient: sums grow from call to call
BURST = 50  # calls that are timed together
