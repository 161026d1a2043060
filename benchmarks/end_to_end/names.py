"""The ways, and numbers, that workers and tables speak of."""

ROWS = 4  # of a worker
WARM_UP = 3  # steps

ALONE, MIRRORED = "no communication", "MultiWorkerMirroredStrategy"
HOROVOD, HOROVOD_FP16 = "Horovod", "Horovod, fp16"
DENSE, TORUS, DEAR, AUTO = "Dense", "Torus2D", "DeAR", "Auto"
DENSE_LARGE, DEAR_SMALL = "Dense, 32 MB buckets", "DeAR, 1 MB buckets"
HITOPK, SHARDED, CODED = "HiTopK", "ShardedTopK", "ShardedTopK, fp16 + delta"

DENSE_WAYS = (HOROVOD, HOROVOD_FP16, MIRRORED, DENSE, DENSE_LARGE, TORUS, DEAR, DEAR_SMALL)
SPARSE_WAYS = (HITOPK, SHARDED, CODED, AUTO)
