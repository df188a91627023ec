"""A question finds an empty database, whatever the one before left, and wherever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import duckdb
import psutil
import pyarrow as pa
import pytest

from include.requests import key_sets
from include.requests.key_sets import Resources, opened
from include.storage import Storage
from tests.emulators import ROOT

KEYS = pa.array([bytes(16), b"k" * 16], pa.binary(16))
NAMES = ("first_table", "seen", "keys", "keys_arrow")


def leave_all_kinds(storage: Storage) -> None:
    storage.write_parquet("keys.parquet", pa.table({"key": KEYS}))
    with opened(storage) as sets:
        sets.table("first_table", "select 1 as key")
        sets.files("seen", ["keys.parquet"], "key")
        sets.keys("keys", KEYS)
        assert sets.number("select count(*) from seen semi join keys using (key)") == 2


def test_nothing_is_left_to_the_next_question(storage: Storage) -> None:
    leave_all_kinds(storage)
    with opened(storage) as sets:
        for name in NAMES:
            with pytest.raises(duckdb.CatalogException):
                sets.number(f"select count(*) from {name}")


def test_a_question_within_another_has_a_database_of_its_own(storage: Storage) -> None:
    with opened(storage) as outer:
        outer.table("held", "select 1 as key")
        with opened(storage) as inner, pytest.raises(duckdb.CatalogException):
            inner.number("select count(*) from held")
        assert outer.number("select count(*) from held") == 1


def test_what_it_may_use_is_its_own(storage: Storage) -> None:
    leave_all_kinds(storage)
    with opened(storage, Resources(memory_limit="100MiB", threads=1)) as sets:
        ((memory, threads, folder),) = sets.rows(
            "select current_setting('memory_limit'), current_setting('threads'),"
            " current_setting('temp_directory')"
        )
        assert (memory, threads, folder) == ("100.0 MiB", 1, sets.scratch)


def test_after_one_that_spilled_it_spills_into_a_folder_that_is_there(storage: Storage) -> None:
    spilling = "select md5(i::varchar) as key, repeat('x', 100) as text from range(1_000_000) t(i)"
    folders = []
    for _ in range(2):
        with opened(storage, Resources(memory_limit="48MB")) as sets:
            assert sets.table("much", spilling) == 1_000_000
            assert os.listdir(sets.scratch)
            folders.append(sets.scratch)
    assert len(set(folders)) == 2
    assert not any(map(os.path.exists, folders))


def test_one_that_failed_is_not_used_again(storage: Storage) -> None:
    with pytest.raises(duckdb.Error), opened(storage) as sets:
        sets.number("select no_such_column")
    assert key_sets._idle == []


def test_one_whose_answer_is_still_read_is_not_used_again(storage: Storage) -> None:
    with opened(storage) as sets:
        sets.table("many", "select * from range(1_000_000)")
        reading = sets.stream("select * from many")
        next(reading)
    assert key_sets._idle == []
    del reading


def test_an_answer_stands_where_its_database_cannot_be_kept(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "_HELD", "select no_such_column")
    with opened(storage) as sets:
        assert sets.number("select 1") == 1
    assert key_sets._idle == []


def test_what_a_question_took_is_the_systems_again(storage: Storage) -> None:
    before = psutil.Process().memory_info().rss
    with opened(storage, Resources(memory_limit="512MB")) as sets:
        sets.table(
            "much", "select md5(i::varchar) as key, md5(i::varchar) as text from range(3_000_000) t(i)"
        )
        within = psutil.Process().memory_info().rss
    assert key_sets._idle
    after = psutil.Process().memory_info().rss
    assert within - before > 150_000_000
    assert after - before < (within - before) / 3, (before, within, after)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("leaving", [os._exit, sys.exit])
def test_a_fork_makes_its_own_and_ends_well(storage: Storage, leaving: Callable[[int], NoReturn]) -> None:
    script = f"""
import os, sys
from include.requests.key_sets import Resources, opened
from include.storage import Storage
from tests.emulators import ROOT
storage = Storage({storage.root!r})
with opened(storage) as sets:
    sets.table("before", "select 1 as key")
child = os.fork()
with opened(storage, Resources(threads=2)) as sets:
    right = sets.table("many", "select * from range(1_000_000)") == 1_000_000
if child:
    right &= os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
{leaving.__module__.replace("posix", "os")}.{leaving.__name__}(not right)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)
