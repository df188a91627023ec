"""A small client of Airflow's REST API: what the launcher and the integration tests do with runs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx

from include.local.errors import ApiError, RunFailedError

FINISHED = frozenset({"success", "failed"})
_PAGE = 100


@dataclass(frozen=True)
class Health:
    """What `/api/v2/monitor/health` says: per component (`metadatabase`, `scheduler`, `triggerer`,
    `dag_processor`) its status and, but for the first, its latest heartbeat."""

    status: Mapping[str, str | None]
    heartbeat: Mapping[str, datetime | None]

    def missing(self, since: Mapping[str, datetime]) -> list[str]:
        """Components that aren't healthy, or whose heartbeat is older than their start in `since`."""
        names = []
        for name, status in self.status.items():
            beat = self.heartbeat.get(name)
            started = since.get(name)
            stale = started is not None and (beat is None or beat < started)
            if status != "healthy" or stale:
                names.append(name)
        return names


@dataclass(frozen=True)
class Task:
    """A task instance: `map_index` is -1 where it isn't mapped; `state` None before it is scheduled."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    label: str

    @property
    def name(self) -> str:
        return self.label or (self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]")


@dataclass
class AirflowApi:
    """Airflow at `url`, as one user."""

    url: str
    user: str
    password: str
    _token: str | None = field(default=None, init=False, repr=False)
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def token(self) -> str:
        """A bearer token, asked for once."""
        if self._token is None:
            answer = self._client.post("/auth/token", json={"username": self.user, "password": self.password})
            if answer.is_error:
                raise ApiError("POST", "/auth/token", answer.status_code, answer.text)
            self._token = str(answer.json()["access_token"])
        return self._token

    def call(self, method: str, path: str, json: Any = None, params: Mapping[str, Any] | None = None) -> Any:
        """Call `path` (under `/api/v2` unless it begins with another root) and return its JSON.

        Raises ApiError for every status from 400 up. A token that has expired is renewed once.
        """
        full = path if path.startswith(("/api/", "/auth/", "/ui/", "/batch")) else f"/api/v2{path}"
        for attempt in (1, 2):
            headers = {"Authorization": f"Bearer {self.token()}"}
            answer = self._client.request(method, full, json=json, params=params, headers=headers)
            if answer.status_code == 401 and attempt == 1:
                self._token = None
                continue
            break
        if answer.is_error:
            raise ApiError(method, full, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def health(self) -> Health:
        """The components' health; needs no token."""
        answer = self._client.get("/api/v2/monitor/health", timeout=10)
        answer.raise_for_status()
        status: dict[str, str | None] = {}
        heartbeat: dict[str, datetime | None] = {}
        for name, facts in answer.json().items():
            status[name] = facts["status"]
            beats = [value for key, value in facts.items() if key.startswith("latest_") and value]
            heartbeat[name] = datetime.fromisoformat(beats[0].replace("Z", "+00:00")) if beats else None
        return Health(status, heartbeat)

    def warm_up(self) -> None:
        """Make the API that tasks talk to build itself: it does at its first request, for up to 10 s,
        and the first task would time out over it."""
        self._client.get("/execution/health/ping", timeout=60).raise_for_status()

    def dags(self) -> dict[str, dict[str, Any]]:
        """All DAGs that were parsed and not since removed, by id."""
        return {dag["dag_id"]: dag for dag in self._pages("/dags", "dags")}

    def import_errors(self) -> dict[str, str]:
        """Stack traces of files that couldn't be imported, by file."""
        found = self._pages("/importErrors", "import_errors")
        return {error["filename"]: error["stack_trace"] for error in found}

    def reparse(self, dag_id: str) -> None:
        """Have the file of a DAG read again at once; a new corpus shows with the next look at `dags`."""
        self.call("PUT", f"/parseDagFile/{self.dags()[dag_id]['file_token']}")

    def unpause(self, dag_id: str, paused: bool = False) -> None:
        """Let the scheduler run a DAG, or stop it from."""
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Trigger a manual run with `conf` over the DAG's defaults; returns its run id."""
        run_id = run_id or f"manual__{uuid.uuid4().hex[:12]}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """A run as the API shows it: `state`, `run_type`, `conf`, dates."""
        return dict(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}"))

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """All runs of a DAG, oldest first."""
        return list(self._pages(f"/dags/{dag_id}/dagRuns", "dag_runs", order_by="id"))

    def tasks(self, dag_id: str, run_id: str) -> list[Task]:
        """All task instances of a run, mapped ones one by one."""
        found = self._pages(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", "task_instances")
        return [
            Task(
                one["task_id"],
                one["map_index"],
                one["state"],
                one["try_number"],
                one.get("rendered_map_index") or "" if one["map_index"] < 0 else _label(one),
            )
            for one in found
        ]

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """A task's log as text, one event a line."""
        answer = self.call(
            "GET",
            f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}",
            params={"map_index": map_index, "full_content": "true"},
        )
        return "\n".join(_log_line(line) for line in answer["content"])

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1
    ) -> Any:
        """What a task returned."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        params = {"map_index": map_index, "deserialize": "true"}
        return self.call("GET", path, params=params)["value"]

    def clear(self, dag_id: str, run_id: str, task_ids: Collection[str], *, downstream: bool = True) -> None:
        """Clear tasks of a run so that they run again, as the button on the page does."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "include_downstream": downstream,
            "reset_dag_runs": True,
        }
        self.call("POST", f"/dags/{dag_id}/clearTaskInstances", body)

    def backfill(
        self, dag_id: str, start: str, end: str, conf: Mapping[str, Any] | None = None, **more: Any
    ) -> int:
        """Create a backfill over the data intervals from `start` to `end` (ISO dates); returns its id."""
        body = {
            "dag_id": dag_id,
            "from_date": start,
            "to_date": end,
            "dag_run_conf": dict(conf or {}),
            "reprocess_behavior": "none",
            "max_active_runs": 10,
            "run_backwards": False,
            **more,
        }
        return int(self.call("POST", "/backfills", body)["id"])

    def wait(
        self,
        dag_id: str,
        run_id: str,
        seconds: float,
        *,
        expect: Collection[str] = ("success",),
        progress: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Wait until a run is finished; `progress` hears of every task that changes its state.

        Raises RunFailedError where it doesn't end within `seconds`, or ends in a state not in `expect`;
        the message lists the failed tasks and the tail of their logs.
        """
        deadline = time.monotonic() + seconds
        seen: dict[tuple[str, int], str | None] = {}
        while True:
            run = self.run(dag_id, run_id)
            if progress:
                for task in self.tasks(dag_id, run_id):
                    key = (task.task_id, task.map_index)
                    if task.state and seen.get(key) != task.state:
                        seen[key] = task.state
                        progress(f"{task.name}: {task.state}")
            if run["state"] in FINISHED:
                break
            if time.monotonic() > deadline:
                raise RunFailedError(
                    f"{dag_id} run {run_id} is still {run['state']} after {seconds:.0f} s\n"
                    + self.describe(dag_id, run_id)
                )
            time.sleep(0.5)
        if run["state"] not in expect:
            raise RunFailedError(
                f"{dag_id} run {run_id} ended as {run['state']}\n" + self.describe(dag_id, run_id)
            )
        return run

    def describe(self, dag_id: str, run_id: str) -> str:
        """The tasks' states, and the log's tail of those that failed, for an error message."""
        lines = []
        for task in sorted(self.tasks(dag_id, run_id), key=lambda one: (one.task_id, one.map_index)):
            lines.append(f"  {task.name}: {task.state} (try {task.try_number})")
            if task.state == "failed":
                try:
                    log = self.log(dag_id, run_id, task.task_id, max(task.try_number, 1), task.map_index)
                    lines += [f"    | {line}" for line in log.splitlines()[-25:]]
                except (ApiError, httpx.HTTPError) as error:
                    lines.append(f"    | its log can't be read: {error}")
        return "\n".join(lines)

    def _pages(self, path: str, name: str, **params: Any) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            page = self.call("GET", path, params={"limit": _PAGE, "offset": offset, **params})
            yield from page[name]
            offset += len(page[name])
            if not page[name] or offset >= page["total_entries"]:
                return


def _label(instance: Mapping[str, Any]) -> str:
    rendered = instance.get("rendered_map_index")
    return f"{instance['task_id']}[{rendered}]" if rendered else ""


def _log_line(line: Any) -> str:
    """An event of a task's log, with the exceptions it carries."""
    if not isinstance(line, dict):
        return str(line)
    errors = [f"{one.get('exc_type')}: {one.get('exc_value')}" for one in line.get("error_detail") or []]
    return "\n".join([str(line.get("event", line)), *errors])
