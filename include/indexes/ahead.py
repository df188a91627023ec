"""Making the next items while the reader works on the last ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], most: int) -> Iterator[T]:
    """The same items in their order, made by a thread of their own, at most `most` ahead of the reader.

    What making one raises is raised where it would have come. A reader that stops early waits for those
    under way.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as maker:
        waiting: deque[Future[tuple[bool, T | None]]] = deque()
        for _ in range(most):
            waiting.append(maker.submit(_next, items))
        while True:
            more, item = waiting.popleft().result()
            if not more:
                return
            waiting.append(maker.submit(_next, items))
            yield item  # type: ignore[misc]


def _next(items: Iterator[T]) -> tuple[bool, T | None]:
    for item in items:
        return True, item
    return False, None
