"""LARS and LAMB under TensorFlow's own strategy of several processes."""

import json
import os
import socket
import subprocess
import sys

STEPS = """
import tensorflow as tf
import keras
import lars_pto

strategy, weights = tf.distribute.MultiWorkerMirroredStrategy(), {}
for kind in (lars_pto.LARS, lars_pto.LAMB):
    for parallel in ("off", "on", "auto"):
        with strategy.scope():
            model = keras.Sequential([keras.Input([16]), keras.layers.Dense(4, kernel_initializer="ones")])
            optimizer = kind(0.5, parallel=parallel)
            optimizer.build(model.trainable_variables)

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(tf.ones([4, 16])) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        run = tf.function(lambda: strategy.run(step))
        run()
        run()
        weights[kind, parallel] = model.get_weights()[0]
    assert (weights[kind, "off"] != 1).all()
    assert optimizer.parallel_decision.divide is False, optimizer.parallel_decision
    for parallel in ("on", "auto"):
        assert abs(weights[kind, parallel] - weights[kind, "off"]).max() < 1e-6, (kind, parallel)
print("as one")
"""


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_norms_are_divided_where_asked_and_not_measured():
    """`auto` cannot run a collective while MultiWorkerMirroredStrategy traces."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    workers = []
    for index in range(2):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environment = os.environ | {"TF_CONFIG": json.dumps(task)}
        command, pipe = [sys.executable, "-c", STEPS], subprocess.PIPE
        workers.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
    try:
        for worker in workers:
            out, err = worker.communicate(timeout=200)
            assert out == "as one\n", err[-3000:]
    finally:
        for worker in workers:
            worker.kill()
