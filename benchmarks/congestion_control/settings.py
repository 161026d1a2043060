"""Names and sizes that the workers and the tables share; pure."""

BYTES = 5 << 18  # of a worker's tensor: a bucket of 1.25 MiB
IN_A_ROW = 4
EXCHANGE, EXCHANGES = "all-to-all", f"{IN_A_ROW} all-to-alls in a row"
GATHER, REDUCE = "all-gather", "all-reduce"


def bytes_sent(operation: str, workers: int) -> float:
    """What a worker must send: P - 1 of P parts of its tensor, once or several times."""
    times = {EXCHANGE: 1, EXCHANGES: IN_A_ROW, GATHER: 1, REDUCE: 2}
    return times[operation] * BYTES * (workers - 1) / workers
