"""The document table: what a version is against what is known, and that the newest truth stands."""

from __future__ import annotations

from typing import Any

import pendulum
import pytest

from include.corpora.documents import Change, Incoming, Judgement, Replaced, Taken, View, replaces, viewing
from include.ledger import clock
from include.ledger.connect import Connection, connect

EARLY = pendulum.datetime(2026, 1, 1)
LATE = pendulum.datetime(2026, 1, 2)
OLD, NEW = "2026-01-01", "2026-01-02"


def version(id: str = "d", text: str = "a", partition: str = NEW, **more: Any) -> Incoming:
    return Incoming(id, partition, text.encode() * 16, b"m" * 16, **more)


def current(ledger: Connection, corpus: str, ids: list[str]) -> dict[str, bytes]:
    """The content hash of each of these documents that the table knows and that isn't deleted."""
    rows = ledger.execute(
        "select document_id, content_hash from documents"
        " where corpus = %s and not deleted and document_id = any(%s)",
        (corpus, ids),
    )
    return {row["document_id"]: row["content_hash"] for row in rows}


def nothing(ids: list[str]) -> None:
    """Where a run's deletes don't matter."""


def take(view: View, *versions: Incoming) -> list[Change]:
    """Judge and add, as prepare does."""
    judgements = view.judge(versions)
    left_out = (Change.STALE, Change.DUPLICATE)
    view.add([Taken(v, j, 1) for v, j in zip(versions, judgements, strict=True) if j.change not in left_out])
    return [judgement.change for judgement in judgements]


def run(
    ledger: Connection, name: str, *versions: Incoming, closed: tuple[str, ...] = ()
) -> tuple[list[Change], list[str]]:
    """One run over these versions: what each was, and which documents were deleted."""
    gone: list[str] = []
    with viewing(ledger, "c", name, "chunking") as view:
        changes = [change for each in versions for change in take(view, each)]
        for partition in closed:
            view.close_partition(partition)
        view.merge(gone.extend)
    return changes, gone


class TestClasses:
    @pytest.mark.parametrize(
        ("known", "incoming", "change"),
        [
            (None, version(), Change.NEW),
            (version(), version(), Change.UNCHANGED),
            (version(), version(text="b"), Change.CHANGED),
            (version(partition=OLD), version(), Change.MOVED),
            (version(), Incoming("d", NEW, b"a" * 16, b"n" * 16), Change.METADATA),
            (version(), version(deleted=True), Change.DELETED),
            (version(deleted=True), version(deleted=True), Change.UNCHANGED),
            (version(deleted=True), version(text="b"), Change.NEW),
            (None, version(deleted=True), Change.DELETED),
            # Older versions:
            (version(updated_at=LATE), version(text="b", updated_at=EARLY), Change.STALE),
            (version(updated_at=EARLY), version(text="b", updated_at=LATE), Change.CHANGED),
            (version(updated_at=EARLY), version(text="b", updated_at=EARLY), Change.CHANGED),
            (version(), version(text="b", partition=OLD), Change.STALE),
            (version(updated_at=EARLY), version(text="b", partition=OLD, updated_at=LATE), Change.CHANGED),
            (version(deleted=True), version(partition=OLD), Change.STALE),
            (version(deleted=True, updated_at=LATE), version(updated_at=EARLY), Change.STALE),
            # Partitions that aren't dates have no order.
            (version(partition="b"), version(partition="a"), Change.MOVED),
        ],
    )
    def test_a_version_is_told_by_what_is_known(
        self, ledger: Connection, known: Incoming | None, incoming: Incoming, change: Change
    ) -> None:
        if known is not None:
            run(ledger, "before", known)
        assert run(ledger, "now", incoming)[0] == [change]

    def test_the_newest_version_stands_whatever_came_last(self, ledger: Connection) -> None:
        run(ledger, "new", version(text="new", updated_at=LATE))
        run(ledger, "old", version(text="old", partition=OLD, updated_at=EARLY))
        assert current(ledger, "c", ["d", "other"]) == {"d": b"new" * 16}

    def test_an_id_read_twice_in_a_partition_is_a_duplicate(self, ledger: Connection) -> None:
        changes, _ = run(ledger, "r", version(), version(text="b"))
        assert changes == [Change.NEW, Change.DUPLICATE]
        assert current(ledger, "c", ["d"]) == {"d": b"a" * 16}

    def test_an_id_read_in_an_older_partition_is_stale(self, ledger: Connection) -> None:
        assert run(ledger, "r", version(), version(partition=OLD))[0] == [Change.NEW, Change.STALE]

    def test_a_later_version_in_the_same_run_replaces_the_earlier(self, ledger: Connection) -> None:
        changes, _ = run(ledger, "r", version(updated_at=EARLY), version(text="b", updated_at=LATE))
        assert changes == [Change.NEW, Change.NEW]
        assert current(ledger, "c", ["d"]) == {"d": b"b" * 16}

    @pytest.mark.parametrize("changes", [False, True])
    @pytest.mark.parametrize("partition", [OLD, NEW])
    @pytest.mark.parametrize(
        ("first", "second"),
        [(None, None), (EARLY, None), (None, LATE), (EARLY, LATE), (LATE, EARLY), (EARLY, EARLY)],
    )
    def test_of_two_in_a_run_the_table_and_the_batch_choose_alike(
        self, ledger: Connection, changes: bool, partition: str, first: Any, second: Any
    ) -> None:
        earlier = version(updated_at=first)
        later = version(text="b", partition=partition, updated_at=second)
        newer = replaces(later, earlier, changes=changes)
        with viewing(ledger, "c", "r", "chunking", changes=changes) as view:
            (judged,) = view.judge([earlier])
            view.add([Taken(earlier, judged, 3, place=7)])
            (judged,) = view.judge([later])
        left_out = Change.DUPLICATE if partition == NEW and not changes else Change.STALE
        assert judged.change is (Change.NEW if newer else left_out)
        assert judged.replaced == Replaced(Change.NEW, NEW, 3, 7)

    def test_a_log_of_changes_is_told_in_its_order(self, ledger: Connection) -> None:
        with viewing(ledger, "c", "r", "chunking", changes=True) as view:
            assert take(view, version()) == [Change.NEW]
            assert take(view, version(deleted=True)) == [Change.DELETED]
            assert take(view, version(text="c")) == [Change.NEW]
            view.merge(nothing)
        assert current(ledger, "c", ["d"]) == {"d": b"c" * 16}

    def test_chunks_are_stored_where_anything_or_the_chunking_differs(self, ledger: Connection) -> None:
        run(ledger, "before", version())
        with viewing(ledger, "c", "same", "chunking") as view:
            assert view.judge([version()]) == [Judgement(Change.UNCHANGED, False, False)]
        with viewing(ledger, "c", "other", "other chunking") as view:
            assert view.judge([version()]) == [Judgement(Change.UNCHANGED, True, True)]

    def test_corpora_are_apart(self, ledger: Connection) -> None:
        run(ledger, "r", version())
        assert current(ledger, "other", ["d"]) == {}


class TestDeletes:
    def test_what_is_missing_from_a_closed_partition_is_deleted(self, ledger: Connection) -> None:
        run(ledger, "before", version("a"), version("b"), version("c", partition=OLD))
        _, gone = run(ledger, "now", version("a"), closed=(NEW,))
        assert gone == ["b"]
        assert set(current(ledger, "c", ["a", "b", "c"])) == {"a", "c"}

    def test_what_could_not_be_read_is_not_missing(self, ledger: Connection) -> None:
        run(ledger, "before", version("a"), version("b"))
        with viewing(ledger, "c", "now", "chunking") as view:
            take(view, version("a"))
            view.protect([("b", NEW)])
            view.close_partition(NEW)
            assert view.merge(nothing) == 0
        assert set(current(ledger, "c", ["a", "b"])) == {"a", "b"}

    def test_what_moved_to_an_older_partition_is_not_deleted(self, ledger: Connection) -> None:
        run(ledger, "before", version())
        with viewing(ledger, "c", "now", "chunking") as view:
            view.close_partition(NEW)
            assert take(view, version(partition=OLD)) == [Change.MOVED]
            view.close_partition(OLD)
            assert view.merge(nothing) == 0
        assert current(ledger, "c", ["d"])

    def test_a_told_delete_is_kept_for_documents_never_seen(self, ledger: Connection) -> None:
        assert run(ledger, "new", version(deleted=True, updated_at=LATE))[1] == ["d"]
        assert run(ledger, "old", version(updated_at=EARLY))[0] == [Change.STALE]
        assert current(ledger, "c", ["d"]) == {}


class TestRunsAtTheSameTime:
    def test_the_run_that_began_later_wins_whichever_merges_last(
        self, ledger: Connection, ledger_url: str
    ) -> None:
        with connect(ledger_url) as other, viewing(ledger, "c", "first", "chunking") as first:
            clock.advance(other, 60)
            with viewing(other, "c", "second", "chunking") as second:
                take(first, version(text="old"))
                take(second, version(text="new"))
                second.merge(nothing)
                first.merge(nothing)
        assert current(ledger, "c", ["d"]) == {"d": b"new" * 16}

    def test_a_document_added_after_a_run_began_is_not_missing_from_it(
        self, ledger: Connection, ledger_url: str
    ) -> None:
        with connect(ledger_url) as other, viewing(ledger, "c", "first", "chunking") as first:
            clock.advance(other, 60)
            run(other, "second", version())
            first.close_partition(NEW)
            assert first.merge(nothing) == 0
        assert current(ledger, "c", ["d"])


class TestRetries:
    def test_after_the_merge_a_retry_reports_the_same(self, ledger: Connection) -> None:
        run(ledger, "before", version("same"), version("changed"), version("gone"))
        versions = (version("same"), version("changed", "b"), version("new"))
        first = run(ledger, "now", *versions, closed=(NEW,))
        assert first == ([Change.UNCHANGED, Change.CHANGED, Change.NEW], ["gone"])
        assert run(ledger, "now", *versions, closed=(NEW,)) == first

    def test_what_the_killed_try_wrote_is_stored_again(self, ledger: Connection) -> None:
        run(ledger, "now", version())
        with viewing(ledger, "c", "now", "chunking") as view:
            (judgement,) = view.judge([version()])
        assert judgement.store

    def test_a_kill_before_the_end_of_the_merge_changes_nothing(self, ledger: Connection) -> None:
        run(ledger, "before", version("a"), version("gone"))

        def killed(ids: list[str]) -> None:
            raise KeyboardInterrupt(ids[0])

        with pytest.raises(KeyboardInterrupt), viewing(ledger, "c", "now", "chunking") as view:
            take(view, version("a", "b"))
            view.close_partition(NEW)
            view.merge(killed)
        assert current(ledger, "c", ["a", "gone"]) == {"a": b"a" * 16, "gone": b"a" * 16}
