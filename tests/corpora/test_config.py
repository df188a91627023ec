"""The corpus YAML: what is accepted, what is refused and how it's named, and what a plan keeps."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from include.contracts import PROJECT_ROOT
from include.corpora.config import SPLITTER, CorpusConfig, load_all, load_corpus
from include.errors import ConfigError

GOOD = """
corpus: books
source:
  kind: jsonl
  url: "{storage_root}/sources/books/*.jsonl"
embedding: {model: text-embedding-3-small, dimensions: 384}
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


class TestLoading:
    def test_a_short_yaml_has_sensible_defaults(self, tmp_path: Path) -> None:
        config = load_corpus(write(tmp_path / "books.yaml", GOOD))
        assert config.source.mode == "snapshot"
        assert config.source.fields.text == "text"
        assert config.index.store == "lancedb"
        assert config.budget.run_usd is None

    @pytest.mark.parametrize(
        ("old", "new", "named"),
        [
            ("kind: jsonl", "kind: xml", "source.kind"),
            ("corpus: books", "corpus: My Books", "corpus"),
            ("dimensions: 384", "dimensions: '384'", "embedding.dimensions"),
            ("dimensions: 384", "dimension: 384", "embedding.dimension: there is no such field"),
            ("model: text-embedding-3-small, ", "", "embedding.model: is missing"),
            ("kind: jsonl", "kind: jsonl\n  partition: '('", "source.partition: not a regular expression"),
            ("kind: jsonl", "kind: jsonl\n  metadata: [title]", "source.metadata: title"),
            ("kind: jsonl", "kind: jsonl\n  fields: {deleted: gone}", "source: fields.deleted"),
            ("embedding:", "chunking: {tokens: 100, overlap: 60}\nembedding:", "chunking: overlap 60"),
            ("embedding:", "chunking: {splitter: mine}\nembedding:", "chunking.splitter"),
            ("embedding:", "chunking: {cut: mine}\nembedding:", "chunking.cut"),
            ("embedding:", "schedules: {initial_ingests: '@daily'}\nembedding:", "schedules.initial_ingests"),
            ("embedding:", "golden_set: nowhere.jsonl\nembedding:", "golden_set: there is no file"),
            (GOOD, "[1, 2]", "must be a mapping"),
            (GOOD, "corpus: [", "isn't YAML"),
        ],
    )
    def test_a_mistake_is_named_by_file_and_field(
        self, tmp_path: Path, old: str, new: str, named: str
    ) -> None:
        path = write(tmp_path / "books.yaml", GOOD.replace(old, new))
        with pytest.raises(ConfigError) as error:
            load_corpus(path)
        assert str(path) in str(error.value)
        assert named in str(error.value)

    def test_every_mistake_is_named_at_once(self, tmp_path: Path) -> None:
        path = write(tmp_path / "books.yaml", GOOD.replace("jsonl\n", "xml\n").replace("384", "0"))
        with pytest.raises(ConfigError, match=r"source\.kind.*embedding\.dimensions"):
            load_corpus(path)

    def test_one_invalid_yaml_leaves_the_others_alone(self, tmp_path: Path) -> None:
        write(tmp_path / "books.yaml", GOOD)
        write(tmp_path / "broken.yaml", "corpus: [")
        write(tmp_path / "twin.yaml", GOOD)
        found = load_all(tmp_path)
        assert isinstance(found["books"], CorpusConfig)
        assert isinstance(found["broken"], ConfigError)
        (twin,) = [value for name, value in found.items() if "twin" in name]
        assert isinstance(twin, ConfigError)
        assert "taken by books.yaml" in str(twin)

    def test_the_bundled_corpora_are_valid(self) -> None:
        found = load_all(PROJECT_ROOT / "include" / "config" / "corpora")
        assert {name: value for name, value in found.items() if isinstance(value, ConfigError)} == {}
        assert found

    def test_loading_a_corpus_imports_nothing_heavy(self) -> None:
        code = (
            "import sys, include.corpora.config\n"
            "heavy = {'openai', 'lancedb', 'duckdb', 'tiktoken', 'semantic_text_splitter', 'psycopg'}\n"
            "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
        )
        subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, check=True)


class TestPlan:
    def test_a_frozen_corpus_is_read_back_as_it_was(self, tmp_path: Path) -> None:
        config = load_corpus(write(tmp_path / "books.yaml", GOOD)).resolve("s3://bucket/root/")
        assert CorpusConfig.from_plan(config.to_plan()) == config

    def test_a_plan_of_a_later_version_loads(self, tmp_path: Path) -> None:
        config = load_corpus(write(tmp_path / "books.yaml", GOOD))
        plan = config.to_plan()
        plan["novelty"] = 1
        plan["source"]["novelty"] = {"more": 2}
        assert CorpusConfig.from_plan(plan) == config

    def test_a_plan_of_an_earlier_splitter_keeps_its_fingerprint(self, tmp_path: Path) -> None:
        config = load_corpus(write(tmp_path / "books.yaml", GOOD))
        plan = config.to_plan()
        plan["chunking"]["splitter"] = "semantic-text-splitter/0.20"
        assert CorpusConfig.from_plan(plan).chunking.fingerprint != config.chunking.fingerprint

    def test_what_a_plan_lacks_is_named(self, tmp_path: Path) -> None:
        plan = load_corpus(write(tmp_path / "books.yaml", GOOD)).to_plan()
        del plan["embedding"]["model"]
        with pytest.raises(ConfigError, match=r"embedding\.model: is missing"):
            CorpusConfig.from_plan(plan)


class TestNames:
    def test_placeholders_are_filled_in(self, tmp_path: Path) -> None:
        config = load_corpus(write(tmp_path / "books.yaml", GOOD)).resolve("s3://bucket/root/")
        assert config.source.url == "s3://bucket/root/sources/books/*.jsonl"
        assert config.index.url == "s3://bucket/root/lancedb"

    def test_another_space_chunking_or_metric_is_another_index(self, tmp_path: Path) -> None:
        config = load_corpus(write(tmp_path / "books.yaml", GOOD))
        space = config.space("api.openai.com").id
        other_chunking = config.model_copy(
            update={"chunking": config.chunking.model_copy(update={"tokens": 300})}
        )
        other_metric = config.model_copy(update={"index": config.index.model_copy(update={"metric": "dot"})})
        names = {
            config.index_version(space),
            config.index_version(config.space("localhost").id),
            other_chunking.index_version(space),
            other_metric.index_version(space),
        }
        assert len(names) == 4
        assert all(name.startswith("books__") and len(name) == len("books__") + 12 for name in names)

    def test_dimensions_are_part_of_the_space_only_where_they_are_asked_for(self, tmp_path: Path) -> None:
        config = load_corpus(write(tmp_path / "books.yaml", GOOD))
        assert config.space("x").params == {"dimensions": 384}
        bare = config.model_copy(
            update={"embedding": config.embedding.model_copy(update={"dimensions": None})}
        )
        assert bare.space("x").params == {}

    def test_the_splitter_installed_is_the_one_that_fingerprints_name(self) -> None:
        """A new splitter may cut elsewhere: raise SPLITTER with it, which makes new index versions."""
        installed = ".".join(version("semantic-text-splitter").split(".")[:2])
        assert f"semantic-text-splitter/{installed}" == SPLITTER
