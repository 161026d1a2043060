"""Names of methods that the workers and the tables share."""

TUNED, GATHER_LAST = "DeAR, tuned", "all-gather at the end, 25 MB"
HOROVOD, ALONE = "Horovod's tape", "no communication"
