"""What the emulator remembers: one SQLite database and a folder of file bytes, kept over kill -9."""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = """
create table if not exists meta (name text primary key, value text not null);
create table if not exists files (
    seq integer primary key autoincrement, id text unique not null, provider text not null,
    account text not null, expires_at real, wire text not null
);
create table if not exists batches (
    seq integer primary key autoincrement, id text unique not null, provider text not null,
    account text not null, created_at real not null, active integer not null,
    wire text not null, work text not null
);
create index if not exists active_batches on batches (provider, active);
create index if not exists batches_of_account on batches (provider, account, seq);
create index if not exists files_of_account on files (provider, account, seq);
create table if not exists charges (batch text not null, custom_id text not null);
create index if not exists charges_by_batch on charges (batch);
create table if not exists calls (operation text primary key, count integer not null);
create table if not exists prompt_cache (
    account text not null, key text not null, expires_at real not null, primary key (account, key)
);
create table if not exists spent (
    kind text primary key, calls integer not null, input_tokens integer not null,
    output_tokens integer not null, dollars real not null
);
"""
_OF_PROJECT = "(?1 is null or substr(account, -length(?1) - 1) = '/' || ?1)"


@dataclass(slots=True)
class FileRecord:
    """A file: `wire` is the object as the provider shows it; the bytes are at `Store.path(id)`."""

    id: str
    provider: str
    account: str
    expires_at: float | None
    wire: dict[str, Any]


@dataclass(slots=True)
class BatchRecord:
    """A batch: `wire` is the object as the provider shows it, `work` what the worker keeps for itself."""

    id: str
    provider: str
    account: str
    created_at: float
    active: bool
    wire: dict[str, Any]
    work: dict[str, Any] = field(default_factory=dict)
    seq: int = 0


class FolderInUse(Exception):
    """Another process has the folder; it must end first."""


class Store:
    """One connection under a lock: statements are short, and the worker commits in small steps."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        # Held until the process ends, however it ends: two workers would do every batch twice.
        self._owner = (folder / "lock").open("w")
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FolderInUse(
                f"another emulator runs on the folder {folder}: stop it or name another"
            ) from None
        for leftover in self.files.glob("*.uploading"):
            leftover.unlink()
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(
            folder / "state.sqlite", check_same_thread=False, isolation_level=None
        )
        # A killed process loses nothing that was committed in WAL mode; only a power cut could.
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = normal")
        self._connection.executescript(SCHEMA)
        self._depth = 0

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()
        self._owner.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and nobody else's statement in between. May be nested."""
        with self._lock:
            if self._depth == 0:
                self._connection.execute("begin immediate")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                if self._depth == 0:
                    self._connection.execute("rollback")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._connection.execute("commit")

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def path(self, file_id: str) -> Path:
        """Where a file's bytes are."""
        return self.files / file_id

    # ----------------------------------------------------------------- meta

    def get_meta(self, name: str) -> str | None:
        """A remembered value, or None."""
        rows = self._rows("select value from meta where name = ?", name)
        return str(rows[0][0]) if rows else None

    def set_meta(self, name: str, value: str) -> None:
        """Remember a value."""
        self._rows(
            "insert into meta values (?, ?) on conflict (name) do update set value = excluded.value",
            name,
            value,
        )

    # ----------------------------------------------------------------- files

    def add_file(self, record: FileRecord) -> None:
        """Register a file whose bytes are in place."""
        self._rows(
            "insert into files (id, provider, account, expires_at, wire) values (?, ?, ?, ?, ?)",
            record.id,
            record.provider,
            record.account,
            record.expires_at,
            json.dumps(record.wire),
        )

    def get_file(self, provider: str, account: str, file_id: str, now: float) -> FileRecord | None:
        """A file that this account may see and that hasn't expired."""
        found = self.list_files(provider, account, now, file_id)
        return found[0] if found else None

    def list_files(
        self, provider: str, account: str, now: float, file_id: str | None = None
    ) -> list[FileRecord]:
        """An account's files that haven't expired, oldest first; None means any id."""
        rows = self._rows(
            "select id, provider, account, expires_at, wire from files where provider = ? and account = ?"
            " and (?4 is null or id = ?4) and (expires_at is null or expires_at > ?3) order by seq",
            provider,
            account,
            now,
            file_id,
        )
        return [FileRecord(i, p, a, e, json.loads(w)) for i, p, a, e, w in rows]

    def all_files(self, now: float, project: str | None = None) -> list[FileRecord]:
        """Files of every provider that haven't expired, of one project or of all, oldest first."""
        rows = self._rows(
            "select id, provider, account, expires_at, wire from files"
            f" where (expires_at is null or expires_at > ?2) and {_OF_PROJECT} order by seq",
            project,
            now,
        )
        return [FileRecord(i, p, a, e, json.loads(w)) for i, p, a, e, w in rows]

    def purge_files(self, now: float) -> None:
        """Remove the bytes of files that have expired."""
        for (file_id,) in self._rows("select id from files where expires_at <= ?", now):
            self.delete_file(file_id)

    def delete_file(self, file_id: str) -> None:
        """Forget a file and remove its bytes."""
        self._rows("delete from files where id = ?", file_id)
        self.path(file_id).unlink(missing_ok=True)

    # ----------------------------------------------------------------- batches

    _BATCH = "select id, provider, account, created_at, active, wire, work, seq from batches "

    def _batches(self, where: str, *values: Any) -> list[BatchRecord]:
        return [
            BatchRecord(i, p, a, c, bool(active), json.loads(wire), json.loads(work), seq)
            for i, p, a, c, active, wire, work, seq in self._rows(self._BATCH + where, *values)
        ]

    def add_batch(self, record: BatchRecord) -> None:
        """Register a new batch."""
        self._rows(
            "insert into batches (id, provider, account, created_at, active, wire, work) "
            "values (?, ?, ?, ?, ?, ?, ?)",
            record.id,
            record.provider,
            record.account,
            record.created_at,
            record.active,
            json.dumps(record.wire),
            json.dumps(record.work),
        )

    def save_batch(self, record: BatchRecord) -> None:
        """Write a batch back. Read it in the same transaction, or another's change is lost."""
        self._rows(
            "update batches set active = ?, wire = ?, work = ? where id = ?",
            record.active,
            json.dumps(record.wire),
            json.dumps(record.work),
            record.id,
        )

    def get_batch(self, batch_id: str, provider: str, account: str | None = None) -> BatchRecord | None:
        """A batch by id, of this account (None: of any)."""
        found = self._batches(
            "where id = ?1 and provider = ?2 and (?3 is null or account = ?3)", batch_id, provider, account
        )
        return found[0] if found else None

    def list_batches(
        self, provider: str, account: str, after: str | None, limit: int, *, before: str | None = None
    ) -> tuple[list[BatchRecord], bool]:
        """A page of an account's batches, newest first, and whether there are more.

        Those right after (older than) one batch, or right before (newer than) another; deleted ones
        are left out.
        """
        order = "asc" if before else "desc"
        found = self._batches(
            "where provider = ?1 and account = ?2 "
            "and (?3 is null or seq < (select seq from batches where id = ?3)) "
            "and (?4 is null or seq > (select seq from batches where id = ?4)) "
            f"and not coalesce(json_extract(work, '$.deleted'), 0) order by seq {order} limit ?5",
            provider,
            account,
            after,
            before,
            limit + 1,
        )
        page = found[:limit]
        return page[::-1] if before else page, len(found) > limit

    def active_batches(self, provider: str) -> list[BatchRecord]:
        """Batches in no terminal state, oldest first."""
        return self._batches("where provider = ? and active = 1 order by seq", provider)

    def all_batches(self, project: str | None = None) -> list[BatchRecord]:
        """Every batch of every provider, of one project or of all, oldest first."""
        return self._batches(f"where {_OF_PROJECT} order by seq", project)

    def batches_since(self, provider: str, account: str, moment: float) -> int:
        """How many batches the account has created after a moment."""
        rows = self._rows(
            "select count(*) from batches where provider = ? and account = ? and created_at > ?",
            provider,
            account,
            moment,
        )
        return int(rows[0][0])

    # ----------------------------------------------------------------- books

    def charge(self, batch_id: str, custom_ids: Iterable[str]) -> None:
        """Note that these lines of a batch were completed, and are paid for."""
        with self._lock:
            self._connection.executemany(
                "insert into charges values (?, ?)", ((batch_id, each) for each in custom_ids)
            )

    def charges(self, batch_ids: Sequence[str] | None = None) -> dict[str, int]:
        """How often each custom_id was paid for, over these batches (None: all)."""
        return dict(
            self._rows(
                "select custom_id, count(*) from charges where ?1 is null"
                " or batch in (select value from json_each(?1)) group by custom_id",
                None if batch_ids is None else json.dumps(list(batch_ids)),
            )
        )

    def cached(self, account: str, keys: Sequence[str]) -> dict[str, float]:
        """When those of the account's cached prefixes expire."""
        marks = ", ".join("?" * len(keys))
        found = self._rows(
            f"select key, expires_at from prompt_cache where account = ? and key in ({marks})", account, *keys
        )
        return dict(found)

    def keep_cached(self, account: str, expiry: dict[str, float]) -> None:
        """Remember until when prefixes are cached."""
        with self._lock:
            self._connection.executemany(
                "insert into prompt_cache values (?, ?, ?) on conflict (account, key) "
                "do update set expires_at = excluded.expires_at",
                ((account, key, moment) for key, moment in expiry.items()),
            )

    def spend(self, kind: str, input_tokens: int, output_tokens: int, dollars: float) -> None:
        """Add a real-time call to the books."""
        self._rows(
            "insert into spent values (?, 1, ?, ?, ?) on conflict (kind) do update set calls = calls + 1, "
            "input_tokens = input_tokens + excluded.input_tokens, "
            "output_tokens = output_tokens + excluded.output_tokens, dollars = dollars + excluded.dollars",
            kind,
            input_tokens,
            output_tokens,
            dollars,
        )

    def spent(self) -> dict[str, dict[str, float]]:
        """Real-time calls, tokens and dollars by kind of call."""
        return {
            kind: {"calls": calls, "input_tokens": inp, "output_tokens": out, "dollars": dollars}
            for kind, calls, inp, out, dollars in self._rows("select * from spent")
        }

    def count_call(self, operation: str) -> None:
        """Count a request that arrived, whatever became of it."""
        self._rows(
            "insert into calls values (?, 1) on conflict (operation) do update set count = count + 1",
            operation,
        )

    def calls(self) -> dict[str, int]:
        """Requests that arrived, by operation."""
        return dict(self._rows("select operation, count from calls"))
