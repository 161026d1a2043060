"""The `tss` command: what is useful around a training job. Its help does not load TensorFlow."""

from __future__ import annotations

import argparse
import importlib
import sys

import tf_sparse_strategy

# Each module has `main(arguments) -> exit code`.
_COMMANDS = {
    "cache": ("datacache.command", "list, verify and clear what DataCache keeps on this machine"),
    "doctor": ("tf_sparse_strategy.cluster.doctor", "examine the machines of a job before the job"),
    "join": (
        "tf_sparse_strategy.cluster.join",
        "be a worker, in a process that mpirun or srun started",
    ),
    "netlab": (
        "tf_sparse_strategy.cluster.netlab_command",
        "run a job on a cluster emulated on this machine",
    ),
    "trace": (
        "tf_sparse_strategy.trace_command",
        "join the traces of a job's workers, and say how well communication hides",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    lines = [f"  {name:<8} {what}" for name, (_, what) in _COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="tss",
        description="Commands:\n" + "\n".join(lines),
        epilog="`tss COMMAND --help` explains a command and its exit code.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=tf_sparse_strategy.__version__)
    parser.add_argument("command", metavar="COMMAND", choices=_COMMANDS, help="one of the above")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(argv)
    module, _ = _COMMANDS[args.command]
    return importlib.import_module(module).main(args.arguments)


if __name__ == "__main__":
    sys.exit(main())
