"""Command lines of programs that start another: `tss NAME [options] -- COMMAND ...`."""

from __future__ import annotations

import argparse


def parser_of(name: str, options: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser of `tss NAME OPTIONS -- COMMAND ...`, to which options are still to be added.

    Args:
      name: of the command of `tss`.
      options: as the usage shows them.
      description, epilog: kept as they are, line by line.
    """
    parser = argparse.ArgumentParser(
        prog=f"tss {name}",
        usage=f"tss {name} {options} -- COMMAND ...",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse(
    parser: argparse.ArgumentParser, argv: list[str], example: str
) -> tuple[argparse.Namespace, list[str]]:
    """(options, COMMAND); ends the program, with `example`, where there is no COMMAND."""
    args = parser.parse_args(argv)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error(f"no command: write it after --, e.g. `{example}`.")
    return args, command
