"""README and docs can't rot: what they name exists, what they list is whole, what they show runs."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import openai
import pyarrow as pa
import pytest
import typer.main
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from include.contracts import IndexSpec, row_schema
from include.corpora.config import CorpusConfig, load_corpus
from include.indexes.live import LivePointer, write_pointer
from include.providers.capabilities import DENIED, Capability
from include.settings import ENV_PREFIX, Settings
from include.storage import Storage
from include.stores.lancedb import LanceStore
from tests.emulators import Emulator

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    page.relative_to(ROOT).as_posix(): page for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
}
TEXTS = {name: page.read_text(encoding="utf-8") for name, page in PAGES.items()}
ALL_TEXT = "\n".join(TEXTS.values())

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOLDERS = ("include/", "plugins/", "dags/", "tests/", "docs/", ".ci/")
ROOT_FILE = re.compile(r"^(Makefile|Dockerfile|[\w.-]+\.(yaml|toml|txt|in|env|md)|\.env\.example)$")
WRITTEN_BY_RUNS = {"live.json", "plan.json", "report.md", "report.json"}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """(page, text) of each fenced block in this language."""
    for name, text in TEXTS.items():
        yield from ((name, block) for found, block in FENCE.findall(text) if found == language)


def table(page: str, first_column: str) -> list[list[str]]:
    """The cells of every table of a page whose first column has this name; code marks removed."""
    rows: list[list[str]] = []
    inside = False
    for line in TEXTS[page].splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first_column:
            inside = True
        elif inside and not set(line) <= set("|- "):
            rows.append(cells)
    return rows


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


class TestWhatIsNamedExists:
    @pytest.mark.parametrize("name", PAGES)
    def test_every_relative_link_leads_somewhere(self, name: str) -> None:
        for target in LINK.findall(TEXTS[name]):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            page = (PAGES[name].parent / path).resolve() if path else PAGES[name]
            assert page.exists(), f"{name} links to {target}"
            if anchor:
                assert anchor in anchors(page.read_text(encoding="utf-8")), f"{name} links to {target}"

    @pytest.mark.parametrize("name", PAGES)
    def test_every_file_named_is_there(self, name: str) -> None:
        for word in CODE.findall(FENCE.sub("", TEXTS[name])):
            named = ROOT_FILE.match(word) and word not in WRITTEN_BY_RUNS
            if word.startswith(FOLDERS) or named:
                assert (ROOT / word).exists(), f"{name} names {word}"

    def test_every_make_target_is_one(self) -> None:
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        named = set(re.findall(r"(?:^|`|')make ([a-z]+)", ALL_TEXT, re.MULTILINE))
        assert {"demo", "test"} <= named
        assert named <= targets

    def test_every_module_that_is_run_is_there(self) -> None:
        for module in set(re.findall(r"python -m ([\w.]+)", ALL_TEXT)):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module

    def test_every_page_can_be_reached_from_the_readme(self) -> None:
        reached, waiting = set(), ["README.md"]
        while waiting:
            name = waiting.pop()
            reached.add(name)
            for target in LINK.findall(TEXTS[name]):
                found = (PAGES[name].parent / target.partition("#")[0]).resolve()
                page = found.relative_to(ROOT).as_posix() if found.is_relative_to(ROOT) else ""
                if page in PAGES and page not in reached:
                    waiting.append(page)
        assert reached == set(PAGES)

    def test_the_readme_is_short(self) -> None:
        assert len(TEXTS["README.md"].splitlines()) < 150


class TestWhatIsListedIsWhole:
    def test_settings(self) -> None:
        fields = {field.name.upper(): field for field in dataclasses.fields(Settings)}
        rows = table("docs/operations.md", "setting")
        assert [row[0].removeprefix(ENV_PREFIX) for row in rows] == list(fields)
        for name, default, _ in rows:
            field = fields[name.removeprefix(ENV_PREFIX)]
            if field.default is dataclasses.MISSING:
                assert default == "required", name
            elif isinstance(field.default, float):
                assert float(default) == field.default, name
            elif field.default != Settings.corpora_dir:
                assert default == (field.default or "empty"), name
        assert set(re.findall(ENV_PREFIX + r"([A-Z_]+)", ALL_TEXT)) <= set(fields)

    def test_fields_of_a_corpus(self) -> None:
        documented = {row[0]: row[1] for row in table("docs/corpora.md", "field")}
        assert documented == dict(yaml_fields(CorpusConfig))

    def test_fields_of_the_pointer(self) -> None:
        rows = table("docs/reading.md", "field")
        named = {name.strip("` ") for row in rows for name in row[0].split(",")}
        assert named == {field.name for field in dataclasses.fields(LivePointer)}

    def test_capabilities_of_providers(self) -> None:
        rows = {row[0]: row[1:3] for row in table("docs/providers.md", "capability")}
        told = {
            name: ["no" if Capability(name) in DENIED[each] else "yes" for each in sorted(DENIED)]
            for name in rows
        }
        assert rows == told and set(rows) == set(Capability)

    def test_commands(self) -> None:
        from include.cli import app

        group: Any = typer.main.get_command(app)
        rows = table("docs/operations.md", "command")
        listed = [row[0].removeprefix("python -m include.cli ").split()[0] for row in rows]
        assert sorted(listed) == sorted(group.commands)
        named = set(re.findall(r"python -m include\.cli ([a-z-]+)", ALL_TEXT))
        assert named <= set(group.commands)


def yaml_fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each field that a YAML may have, dotted, with its default as the docs write it."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner is not None:
            yield from yaml_fields(inner, f"{prefix}{name}.")
        elif prefix + name not in ("chunking.splitter", "chunking.cut"):  # set by the code
            yield prefix + name, default_in_words(field.default)


def default_in_words(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    if default is None or isinstance(default, list | dict):
        return json.dumps(default)
    return str(default)


class TestWhatIsShownRuns:
    def test_every_corpus_shown_is_valid(self, tmp_path: Path) -> None:
        shown = [text for _, text in blocks("yaml") if "corpus" in yaml.safe_load(text)]
        assert shown
        for number, text in enumerate(shown):
            file = tmp_path / f"{number}.yaml"
            file.write_text(text, encoding="utf-8")
            load_corpus(file)

    def test_the_connection_shown_is_json(self) -> None:
        shown = re.findall(r"AIRFLOW_CONN_OPENAI_DEFAULT='([^']+)'", ALL_TEXT)
        assert shown
        assert all(json.loads(text)["conn_type"] == "openai" for text in shown)

    def test_the_readers_code_finds_what_is_nearest(
        self, storage: Storage, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "emulator")
        monkeypatch.setenv("OPENAI_BASE_URL", emulator.openai_url)
        texts = ["how to leave a loop", "how to write a function", "how to raise an error"]
        model, width = "text-embedding-3-small", 384
        answer = openai.OpenAI().embeddings.create(model=model, dimensions=width, input=texts)
        store = LanceStore(f"{storage.root}/lancedb")
        store.ensure(IndexSpec("docs__1", width))
        rows: dict[str, list[Any]] = {
            "chunk_id": ["a", "b", "c"],
            "document_id": ["break", "function", "raise"],
            "text": texts,
            "metadata": ["{}"] * 3,
            "vector": [each.embedding for each in answer.data],
            "stamp": [0] * 3,
        }
        store.upsert("docs__1", [pa.RecordBatch.from_pydict(rows, schema=row_schema(width))])
        pointer = LivePointer(
            index="docs__1",
            store="lancedb",
            store_url=store.url,
            model=model,
            dimensions=width,
            space="",
            chunking="",
            provider="openai",
            endpoint="/v1/embeddings",
            connection="openai_default",
            run="",
            params={"dimensions": width},
        )
        write_pointer(storage, "docs", pointer)
        (code,) = (text for page, text in blocks("python") if page == "docs/reading.md")
        names: dict[str, Any] = {}
        exec(compile(code, "docs/reading.md", "exec"), names)
        hits = names["search"](storage.root, "docs", texts[2], k=2)
        assert len(hits) == 2
        assert hits[0]["document_id"] == "raise"


class TestComparisonWithAirflowsOwnOperator:
    def test_run_again_after_the_create_it_makes_a_second_batch(
        self, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the README says of it; that ours doesn't is told by tests/batches/test_submit.py."""
        from airflow.providers.openai.operators.openai import OpenAITriggerBatchOperator

        connection = {"conn_type": "openai", "password": "emulator", "host": emulator.openai_url}
        monkeypatch.setenv("AIRFLOW_CONN_OPENAI_DEFAULT", json.dumps(connection))
        client = openai.OpenAI(base_url=emulator.openai_url, api_key="emulator")
        body = {"model": "text-embedding-3-small", "input": "hello"}
        line = {"custom_id": "one", "method": "POST", "url": "/v1/embeddings", "body": body}
        file = client.files.create(file=("requests.jsonl", json.dumps(line).encode()), purpose="batch")
        operator = OpenAITriggerBatchOperator(
            task_id="batch", file_id=file.id, endpoint="/v1/embeddings", wait_for_completion=False
        )
        operator.execute({})
        operator.execute({})
        assert len(client.batches.list().data) == 2
