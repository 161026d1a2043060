"""Who is to blame when a job stands still: every worker watches, and says so before it ends.

| file              | what it holds                                                         |
|-------------------|-----------------------------------------------------------------------|
| `verdict.py`      | from what is known of all workers to a cause; pure                    |
| `source_line.py`  | where a thread is: the line of the user's program                     |
| `waits.py`        | what this worker waits in                                             |
| `channel.py`      | messages between rank 0 and the others, beside Horovod                |
| `thread.py`       | the thread that reports, listens, judges and ends                     |
"""

from tf_sparse_strategy.watchdog.thread import EXIT_CODE, Watchdog, watch

__all__ = ["EXIT_CODE", "Watchdog", "watch"]
