"""The plan of a run: everything decided at its start, frozen in `plan.json`.

A run lives up to a day and outlives deployments. `prepare` resolves the corpus, the model and the
index once; every later step reads that, so what one version submitted the next version lands.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import pendulum

from include.contracts import JSON, RunRef, Space
from include.corpora.config import CorpusConfig
from include.corpora.extraction_config import ExtractionConfig
from include.errors import PlanMissing
from include.storage import Storage
from include.workloads.replay import Replay

PLAN_FORMAT = 1
EXTRACTION = "metadata_extraction"


@dataclass(frozen=True, slots=True)
class Window:
    """A data interval, ISO 8601: from `start`, up to but without `end`."""

    start: str
    end: str

    def days(self) -> tuple[str, ...]:
        """The partitions of this window, `YYYY-MM-DD`: the day it begins on, and each day after.

        A nightly run from 02:00 to 02:00 belongs to the day it began on alone.
        """
        moment, end = _parse(self.start), _parse(self.end)
        days = []
        while moment < end:
            days.append(moment.format("YYYY-MM-DD"))
            moment = moment.add(days=1)
        return tuple(days)


def _parse(text: str) -> pendulum.DateTime:
    parsed = pendulum.parse(text)
    assert isinstance(parsed, pendulum.DateTime)
    return parsed.in_timezone("UTC")


@dataclass(frozen=True, slots=True)
class Request:
    """What the trigger form, the schedule or a backfill asked for."""

    window: Window | None = None
    partitions: tuple[str, ...] | None = None
    sample: int | None = None
    limit: int | None = None
    dry_run: bool = False
    budget_usd: float | None = None
    priority: int = 0
    approve: bool = False
    replay: Replay | None = None

    def wanted_partitions(self, *, dated: bool) -> tuple[str, ...] | None:
        """The partitions this run may see; None means all. Named ones beat the window.

        A window says nothing about a source that isn't `dated`: it is read whole every time.
        """
        if self.partitions is not None:
            return self.partitions
        return self.window.days() if self.window is not None and dated else None


@dataclass(frozen=True, slots=True)
class Plan:
    """The frozen plan. `config` is the corpus as it was resolved, as plain data.

    `space` is what the answers are for; `asked` is the space that is asked instead, in a replay with a
    change of model or parameters.
    """

    run: str
    workload: str
    corpus: str
    request: Request
    config: dict[str, Any]
    space: dict[str, Any]
    space_id: str
    account: str
    version: str
    deployment: str
    created_at: str
    disagreements: tuple[str, ...] = ()
    prepared: dict[str, JSON] = field(default_factory=dict)
    asked: dict[str, Any] | None = None
    format: int = PLAN_FORMAT

    def corpus_config(self) -> CorpusConfig:
        """The corpus's configuration as it was when the run began."""
        return CorpusConfig.from_plan(self.config)

    def space_of(self) -> Space:
        """The space that this run's items live in."""
        return _space(self.space)

    def asked_space(self) -> Space:
        """The space that this run's requests are made in."""
        return _space(self.asked or self.space)

    @property
    def extraction(self) -> ExtractionConfig | None:
        """What this run, or the one whose letters it replays, extracts; None where it embeds."""
        replayed = self.request.replay
        worked = self.workload if replayed is None else replayed.workload
        return self.corpus_config().extraction if worked == EXTRACTION else None

    def asks(self) -> tuple[str, str]:
        """The provider that this run asks, and its connection."""
        extraction = self.extraction
        if extraction is not None:
            return extraction.provider, extraction.connection_id
        embedding = self.corpus_config().embedding
        return embedding.provider, embedding.connection

    def partitions(self) -> dict[str, bool]:
        """The partitions that the run saw, and of each whether it read it whole."""
        found = self.prepared.get("partitions")
        return dict(found) if isinstance(found, dict) else {}

    @property
    def whole(self) -> bool:
        """Whether the run saw all documents of its partitions; else it deletes and publishes nothing."""
        return self.request.sample is None and self.request.limit is None

    def save(self, storage: Storage, ref: RunRef) -> None:
        """Write `plan.json`."""
        storage.write_json(f"{ref.uri}/plan.json", asdict(self))

    @classmethod
    def load(cls, storage: Storage, uri: str) -> Plan:
        """Read a run's plan. Raises PlanMissing when it has none.

        Fields that a later version added are ignored, so that an earlier one can still land.
        """
        path = f"{uri}/plan.json"
        if not storage.exists(path):
            raise PlanMissing(
                f"{storage.url(path)} isn't there: `prepare` never finished in this run; clear it"
            )
        data = storage.read_json(path)
        request = data["request"]
        known = set(cls.__dataclass_fields__) & set(data)
        values = {name: data[name] for name in known}
        fields = set(Request.__dataclass_fields__) & set(request)
        asked = {name: request[name] for name in fields}
        asked["window"] = Window(**asked["window"]) if asked.get("window") else None
        if asked.get("partitions") is not None:
            asked["partitions"] = tuple(asked["partitions"])
        asked["replay"] = Replay.from_json(asked["replay"]) if asked.get("replay") else None
        values["request"] = Request(**asked)
        values["disagreements"] = tuple(values.get("disagreements", ()))
        return cls(**values)


def _space(known: dict[str, Any]) -> Space:
    return Space(
        protocol=known["protocol"],
        service=known["service"],
        endpoint=known["endpoint"],
        model=known["model"],
        params=known["params"],
        presend=known.get("presend", ""),
    )
