"""The command line of the launcher."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from include.local.commands import STATE, cli, up
from include.local.demo import demo
from include.local.errors import ApiError, RunFailedError, StackError


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM or SIGHUP: ends the stack as Ctrl-C does."""


def main() -> int:
    """Parse the command line and run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m include.local", description=__doc__)
    parser.add_argument("--state", type=Path, default=STATE, help="folder of its data (default: .local)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start Airflow, PostgreSQL and the emulator; Ctrl-C stops all of it")
    commands.add_parser("demo", help="ingest the bundled corpus on that stack and ask it three questions")
    ours = commands.add_parser("cli", help="run a command of include.cli on that stack's data")
    ours.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _terminated)
    try:
        if options.command == "up":
            return up(options.state)
        if options.command == "demo":
            return demo(options.state)
        return cli(options.arguments, options.state)
    except (StackError, RunFailedError, ApiError, subprocess.CalledProcessError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except _TerminatedError:
        return 128 + int(signal.SIGTERM)
    except KeyboardInterrupt:
        # The way to end `up` is no failure of it.
        return 0 if options.command == "up" else 128 + int(signal.SIGINT)


def _terminated(*_: Any) -> None:
    raise _TerminatedError


if __name__ == "__main__":
    sys.exit(main())
