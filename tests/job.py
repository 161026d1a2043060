"""Starts workers on this machine as Horovod's launcher does: its places, its rendezvous, no more.

Without its first question, whether Horovod was built with Gloo, for which it imports TensorFlow.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from tf_sparse_strategy.cluster.launch import serving


@contextlib.contextmanager
def started(
    hosts: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    present: Sequence[int] | None = None,
    **pipes,
) -> Iterator[dict[int, subprocess.Popen]]:
    """{rank: process}; kills at the end those that still run.

    Args:
      hosts: horovodrun's -H, e.g. "localhost:2,127.0.0.1:1": names of this machine pose as others.
      command: of each worker.
      environment: more of it.
      present: the ranks that are started; all by default.
      pipes: of `subprocess.Popen`.
    """
    workers = sum(host.slots for host in parse_hosts(hosts))
    slots = get_host_assignments(parse_hosts(hosts), workers)
    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, verbose=0)
    job = {}
    with serving(server, slots) as port:
        of_job = create_run_env_vars("127.0.0.1", ["lo"], port)
        common = {**os.environ, **(environment or {}), **{k: str(v) for k, v in of_job.items()}}
        try:
            for slot in slots:
                if present is None or slot.rank in present:
                    place = create_slot_env_vars(slot)
                    job[slot.rank] = subprocess.Popen(
                        command, env={**common, **place}, stdin=subprocess.DEVNULL, **pipes
                    )
            yield job
        finally:
            for process in job.values():
                process.kill()
                process.wait()
