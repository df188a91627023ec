"""What readers read changes only when the new index is whole, in one step, and can be changed back."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

import pytest

from include.errors import ConfigError, IndexMissing, PublishRefused
from include.indexes import live, versions
from include.indexes.live import LivePointer, read_pointer
from include.indexes.publish import PublishReport, publish, rollback
from include.ledger.connect import connect
from tests.indexes.world import CHUNKING, CORPUS, DIMENSIONS, SPACE, VERSION, Document, World

NEXT = "docs__2"


def pointer(version: str = VERSION, run: str = "first") -> LivePointer:
    return LivePointer(
        index=version,
        store="lancedb",
        store_url="file://somewhere",
        model=f"model of {version}",
        dimensions=DIMENSIONS,
        space=SPACE,
        chunking=CHUNKING,
        provider="openai",
        endpoint="/v1/embeddings",
        connection="openai_default",
        run=run,
    )


def go(
    world: World,
    version: str = VERSION,
    *,
    whole: bool = True,
    covered: tuple[str, ...] = ("all",),
    known: tuple[str, ...] = (),
) -> PublishReport:
    return publish(
        world.ledger,
        world.storage,
        corpus=CORPUS,
        version=version,
        pointer=pointer(version),
        covered=covered,
        known=known,
        whole=whole,
    )


def state(world: World, version: str = VERSION) -> str:
    return versions.get(world.ledger, version).state


def test_a_whole_run_sends_readers_to_its_index(world: World) -> None:
    world.know([Document("a", ["one"])])
    assert go(world).state == "published"
    read = read_pointer(world.storage, CORPUS)
    assert dataclasses.replace(read, published_at="") == pointer()
    assert read.published_at.startswith("20")
    assert state(world) == "live"


def test_before_that_readers_are_told_what_to_do(world: World) -> None:
    with pytest.raises(IndexMissing, match="initial_ingest__docs"):
        read_pointer(world.storage, CORPUS)


def test_a_limited_run_publishes_and_covers_nothing(world: World) -> None:
    assert go(world, whole=False).state == "partial"
    assert state(world) == "building" and versions.covered(world.ledger, VERSION) == set()


def test_the_run_that_completes_the_partitions_publishes(world: World) -> None:
    world.know([Document("a", ["one"], partition="2026-01-01"), Document("b", ["x"], partition="2026-01-02")])
    report = go(world, covered=("2026-01-02",), known=("2026-01-03",))
    assert (report.state, report.missing) == ("incomplete", ("2026-01-01", "2026-01-03"))
    assert go(world, covered=("2026-01-01",), known=("2026-01-03",)).state == "incomplete"
    assert go(world, covered=("2026-01-03",)).state == "published"


def test_again_is_no_change(world: World) -> None:
    go(world)
    before = world.storage.read_bytes(live.pointer_path(CORPUS))
    assert go(world, covered=("2026-01-09",)).state == "already_live"
    assert world.storage.read_bytes(live.pointer_path(CORPUS)) == before
    assert versions.covered(world.ledger, VERSION) == {"all", "2026-01-09"}


def test_the_index_that_was_live_stands_by_and_a_rollback_goes_there_and_back(world: World) -> None:
    go(world)
    world.build(NEXT)
    assert go(world, NEXT).state == "published"
    assert (state(world), state(world, NEXT)) == ("standby", "live")
    assert {version.version for version in versions.writable(world.ledger, CORPUS)} == {VERSION, NEXT}
    assert rollback(world.ledger, world.storage, CORPUS).index == VERSION
    assert read_pointer(world.storage, CORPUS).model == f"model of {VERSION}"
    assert (state(world), state(world, NEXT)) == ("live", "standby")
    assert rollback(world.ledger, world.storage, CORPUS).index == NEXT


def test_a_run_that_outlives_a_rollback_does_not_undo_it(world: World) -> None:
    go(world)
    world.build(NEXT)
    go(world, NEXT)
    rollback(world.ledger, world.storage, CORPUS)
    assert go(world, NEXT).state == "standby"
    assert read_pointer(world.storage, CORPUS).index == VERSION


def test_there_is_nothing_to_go_back_to_at_first(world: World) -> None:
    go(world)
    with pytest.raises(PublishRefused, match="standby"):
        rollback(world.ledger, world.storage, CORPUS)


@pytest.mark.parametrize(
    "finish", [lambda world: go(world, NEXT), lambda world: rollback(world.ledger, world.storage, CORPUS)]
)
def test_killed_between_ledger_and_pointer_the_switch_is_finished_by_what_comes_next(
    world: World, finish: Callable[[World], object]
) -> None:
    go(world)
    world.build(NEXT)
    versions.announce(world.ledger, NEXT, pointer(NEXT).as_json())
    assert versions.go_live(world.ledger, NEXT, was="publishing")
    assert read_pointer(world.storage, CORPUS).index == VERSION
    finish(world)
    assert read_pointer(world.storage, CORPUS).index == NEXT
    assert state(world, NEXT) == "live"


def test_killed_after_the_announcement_another_version_can_still_be_published(world: World) -> None:
    versions.announce(world.ledger, VERSION, pointer().as_json())
    world.build(NEXT)
    assert go(world, NEXT).state == "published"
    assert state(world) == "building"
    assert go(world).state == "published"


def test_a_retired_version_is_refused_and_can_be_built_anew(world: World) -> None:
    go(world)
    world.build(NEXT)
    go(world, NEXT)
    assert versions.change(world.ledger, VERSION, was=["standby"], to="retired")
    with pytest.raises(PublishRefused, match="retired"):
        go(world)
    world.build(run="later")
    assert state(world) == "building" and versions.covered(world.ledger, VERSION) == set()


def test_two_at_once_leave_one_live_and_the_pointer_on_it(world: World, ledger_url: str) -> None:
    names = [f"docs__{number}" for number in range(2, 8)]
    for name in names:
        world.build(name)

    def one(name: str) -> None:
        with connect(ledger_url) as connection:
            publish(
                connection,
                world.storage,
                corpus=CORPUS,
                version=name,
                pointer=pointer(name),
                covered=("all",),
                whole=True,
            )

    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = versions.live(world.ledger, CORPUS)
    assert now is not None and read_pointer(world.storage, CORPUS).index == now.version
    assert [version.state for version in versions.of_corpus(world.ledger, CORPUS)].count("standby") == 5


def test_a_version_is_made_once_and_never_with_other_values(world: World) -> None:
    before = versions.get(world.ledger, VERSION)
    world.build(run="second")
    assert versions.get(world.ledger, VERSION) == before
    world.ledger.execute("update index_versions set store_url = 'file://elsewhere'")
    with pytest.raises(ConfigError, match=r"store_url is file://elsewhere there and file://somewhere here"):
        world.build()


def test_a_later_version_s_pointer_can_be_read(world: World) -> None:
    world.storage.write_json(live.pointer_path(CORPUS), {**pointer().as_json(), "later": 1})
    assert read_pointer(world.storage, CORPUS) == pointer()
