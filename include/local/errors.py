"""What the launcher can't do, in words that say what to do next."""

from __future__ import annotations


class StackError(Exception):
    """The local stack can't be started, or a part of it ended; the message shows the log's tail."""


class ApiError(Exception):
    """Airflow's API refused a call; carries the status and the answer's body."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path} gave {status}: {body[:2000]}")
        self.status = status
        self.body = body


class RunFailedError(Exception):
    """A DAG run ended otherwise than asked for, or not in time."""
