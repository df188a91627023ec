"""`python -m include.emulator`: the command line."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from include.emulator.settings import Settings


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    """The options, and the settings they make."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m include.emulator",
        description="OpenAI's and Anthropic's batch APIs and their real-time twins on this machine, for "
        "development and CI.",
    )
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder for state and files; made if missing"
    )
    parser.add_argument("--embeddings", choices=["minilm", "hash"], default=defaults.embeddings)
    parser.add_argument("--tokens", choices=["exact", "guess"], default=defaults.tokens)
    parser.add_argument("--clock", choices=["real", "manual"], default="real")
    for name in ("validating", "batch", "finalizing", "cancelling"):
        option = f"{name}_seconds"
        parser.add_argument(
            f"--{name}-seconds", type=float, default=getattr(defaults, option), help="default: %(default)s"
        )
    for name in ("tokens", "requests"):
        parser.add_argument(
            f"--enqueued-{name}",
            action="append",
            default=[],
            metavar="[MODEL=]N",
            help=f"{name} that may wait at a time, for one model or for every model; repeatable",
        )
    parser.add_argument("--creations-per-hour", type=int, default=defaults.creations_per_hour)
    parser.add_argument(
        "--queued-messages",
        type=int,
        default=defaults.queued_messages,
        help="requests of message batches that may wait at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-hit-share",
        type=float,
        default=defaults.cache_hit_share,
        help="share of a message batch's requests that hit the prompt cache (default: %(default)s)",
    )
    parser.add_argument("--models", help="the only models that exist, separated by commas")
    parser.add_argument(
        "--key", action="append", default=[], help="an API key to accept; repeatable; default: any"
    )
    parser.add_argument("--missing-input", choices=["refuse", "fail"], default=defaults.missing_input)
    parser.add_argument("--cancelled-lines", choices=["written", "absent"], default=defaults.cancelled_lines)
    parser.add_argument("--log-level", default="WARNING")
    options = parser.parse_args(arguments)
    settings = Settings(
        embeddings=options.embeddings,
        tokens=options.tokens,
        validating_seconds=options.validating_seconds,
        batch_seconds=options.batch_seconds,
        finalizing_seconds=options.finalizing_seconds,
        cancelling_seconds=options.cancelling_seconds,
        enqueued_tokens=_limits(parser, options.enqueued_tokens),
        enqueued_requests=defaults.enqueued_requests | _limits(parser, options.enqueued_requests),
        creations_per_hour=options.creations_per_hour,
        queued_messages=options.queued_messages,
        cache_hit_share=options.cache_hit_share,
        models=[each.strip() for each in (options.models or "").split(",") if each.strip()],
        keys=options.key,
        missing_input=options.missing_input,
        cancelled_lines=options.cancelled_lines,
    )
    return options, settings


def _limits(parser: argparse.ArgumentParser, given: list[str]) -> dict[str, int]:
    limits = {}
    for each in given:
        model, _, number = each.rpartition("=")
        try:
            limits[model or "*"] = int(number.replace("_", ""))
        except ValueError:
            parser.error(f"{each!r} is no limit: say a number, or model=number")
    return limits


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    options, settings = parse()
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    from include.emulator.app import make_app
    from include.emulator.server import make_server
    from include.emulator.store import FolderInUse

    try:
        app = make_app(options.data, settings, options.clock)
    except FolderInUse as error:
        sys.exit(str(error))
    shown = f"http://{options.host}:{options.port}"
    server = make_server(
        app,
        options.host,
        options.port,
        f"emulator ready at {shown}/openai/v1 and /anthropic "
        f"(embeddings {options.embeddings}, clock {options.clock})",
    )
    # uvicorn raises the signal again at its end: a stop that was asked for is exit code 0.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: sys.exit(0))
    server.run()


if __name__ == "__main__":
    main()
