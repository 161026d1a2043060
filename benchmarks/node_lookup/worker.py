"""A worker: times the table's part of a training step, the ways in turns."""

import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.embedding import measure, settings
from benchmarks.hand_in import hand_in
from benchmarks.node_lookup.tables import ALONE, BY_ROWS, TOGETHER
from tf_sparse_strategy.topology import Group


def ways(setting) -> dict:
    """{way: (its strategy, the step as a function of ids, the function that reads whole rows)}."""
    made = {}
    for way in (TOGETHER, ALONE, BY_ROWS):
        strategy = tss.SparseStrategy()
        if way == ALONE:
            strategy.extended.slices.group = Group.GLOBAL
        if way == BY_ROWS:
            made[way] = strategy, *measure.trained_by_rows(strategy, setting)
        else:
            made[way] = strategy, *measure.trained_by_keras(strategy, setting, "columns")
    return made


def main() -> None:
    """Writes the records as JSON, on rank 0."""
    args = measure.arguments(__doc__)
    comm = tss.SparseStrategy().extended.collectives
    setting = settings.known(args.quick)[args.setting].fitted(comm.topology.num_workers)
    ids = settings.batches(setting, args.rounds + 1, comm.topology.rank)
    of_node = [np.unique(comm.all_gather(tf.constant(batch), Group.LOCAL)).size for batch in ids]
    own = [np.unique(batch).size for batch in ids]
    mean = comm.all_reduce(tf.constant([np.mean(own), np.mean(of_node)])) / comm.topology.num_workers
    made, probe = ways(setting), tf.constant(ids[0])
    found = {**settings.facts(args.setting, setting), "distinct": [int(x) for x in mean], "steps": {}}
    for number, batch in enumerate(ids):
        for way in list(made) if number % 2 else list(made)[::-1]:
            of_way, step, read = made[way]
            took = measure.timed(of_way.extended.collectives, step, batch)
            if number:  # the first has traced the step
                found["steps"].setdefault(way, []).append(took)
    rows = {way: read(probe) for way, (_, _, read) in made.items()}
    for way, found_rows in rows.items():
        np.testing.assert_allclose(found_rows, rows[BY_ROWS], rtol=1e-3, atol=1e-4, err_msg=way)
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
