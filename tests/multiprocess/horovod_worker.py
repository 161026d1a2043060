"""One rank that reduces until an error comes, and reports it: `horovod_worker.py --help`."""

import argparse
import json
import os
import signal
import sys
import time

import horovod.tensorflow as hvd
import tensorflow as tf

STEPS_BEFORE_TROUBLE = 3  # the tensors' names are in Horovod's response cache by then


def ranks(text: str) -> list[int]:
    """Parses '0,1'."""
    return [int(rank) for rank in text.split(",")]


def main() -> int:
    """Returns 0 after all steps, 3 after an exception; prints one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--process-set", type=ranks, help="reduce over these ranks only")
    parser.add_argument("--absent", type=int, help="this rank stops calling, but lives")
    parser.add_argument("--killed", type=int, help="this rank dies by SIGKILL")
    parser.add_argument("--idle", type=float, default=0, help="seconds without a call, before all others")
    arguments = parser.parse_args()

    subset = hvd.ProcessSet(arguments.process_set) if arguments.process_set else None
    hvd.init(process_sets=[subset] if subset else None)

    used = time.process_time()
    time.sleep(arguments.idle)
    used = time.process_time() - used

    # In functions, since eagerly executed operators all have the same name; on an argument, since
    # TensorFlow folds the reduction of a constant into a constant.
    @tf.function
    def reduce_over_group(tensor: tf.Tensor) -> tf.Tensor:
        group = subset or hvd.global_process_set
        return hvd.allreduce(tensor, op=hvd.Sum, name="group_sum", process_set=group)

    @tf.function
    def meet(tensor: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(tensor, name="meet")

    member = subset is None or subset.included()
    total = None
    try:
        for step in range(2 * STEPS_BEFORE_TROUBLE):
            if step == STEPS_BEFORE_TROUBLE:
                if hvd.rank() == arguments.killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                if hvd.rank() == arguments.absent:
                    time.sleep(600)
                if arguments.absent is not None and not member:
                    time.sleep(9)  # calls late, so that only the process set is seen to stall
            begin = time.monotonic()
            if member:
                total = reduce_over_group(tf.ones([4])).numpy().tolist()
            meet(tf.ones([1]))  # ranks outside the set wait here for those inside
    except tf.errors.OpError as error:
        report = {
            "error": type(error).__name__,
            "message": str(error),
            "seconds": time.monotonic() - begin,
        }
        print(json.dumps(report), flush=True)
        return 3
    print(json.dumps({"sum": total, "idle": used}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
