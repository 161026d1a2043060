"""Names and sizes that the workers, the settings and the tables share."""

BUCKET = 5 << 18  # 1.25 MiB, a twentieth of the 25 MiB of DeAR and others, as the models are
BUCKET_NAME = f"{BUCKET / (1 << 20):g} MB"
TUNED, GATHER_LAST = "DeAR, tuned", f"all-gather at the end, {BUCKET_NAME}"
HOROVOD, ALONE = "Horovod's tape", "no communication"
