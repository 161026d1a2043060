"""A worker: TensorFlow's MultiWorkerMirroredStrategy, with its ring over gRPC.

A job of its own: TensorFlow must know the cluster before anything else runs, and Horovod's thread
would take processor time from it. A custom loop, because Keras 3's `fit` fails under this strategy
(keras-team/keras#20585).
"""

import json
import os

import tensorflow as tf

from benchmarks import hand_in
from benchmarks.dense_training import ways

PORT = 23450


def make_strategy(
    nodes: int, local: int, rank: int, pack: int = 0
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Finds the other workers on netlab's nodes, which are called node0, node1, ...

    Args:
      nodes, local: M and G of the netlab.
      rank: of this worker.
      pack: bytes of gradients in one message; 0: all are in one, TensorFlow's default.
    """
    workers = [f"node{node}:{PORT + index}" for node in range(nodes) for index in range(local)]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    )
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack, implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    args = hand_in.arguments(__doc__, nodes=int, local=int, pack=int, width=int, rounds=int, steps=int)
    workers, rank = args.nodes * args.local, int(os.environ["HOROVOD_RANK"])
    strategy = make_strategy(args.nodes, args.local, rank, args.pack)
    methods = {
        "MultiWorkerMirroredStrategy": ways.strategy_method(strategy, workers, args.width)
    }
    differences = ways.difference_to_one_process(methods, workers, rank, args.width)
    times = ways.time_rounds(methods, workers, rank, args.rounds, args.steps)
    hand_in.write({"differences": differences, "seconds": times}, args.output, rank)


if __name__ == "__main__":
    main()
