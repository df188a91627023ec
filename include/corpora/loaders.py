"""Records of a loader of your own: a callable that is given the options and yields dicts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from include.corpora.dotted import load_callable
from include.corpora.records import LOST, Fault, Found, Reason
from include.corpora.source_config import SourceConfig
from include.corpora.values import kind_of
from include.errors import BatchInferenceError, ConfigError, StorageError


def read_loader(config: SourceConfig, partitions: Sequence[str] | None) -> Iterator[Found | Fault]:
    """What `source.kind` yields; `line` is the record's number.

    It's called as `loader(options, partitions)`, where `partitions` None means all; records of other
    partitions are passed over, so a loader need not look at it. Raises ConfigError for a loader
    that can't be called so, StorageError where it fails while it reads.
    """
    loader = load_callable(config.kind, "source.kind")
    try:
        inspect.signature(loader).bind({}, None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"source.kind is {config.kind!r}, which can't be called as loader(options, partitions): {error}"
        ) from error
    number = 0
    try:
        records = loader(dict(config.options), None if partitions is None else list(partitions))
        if not hasattr(records, "__iter__") or isinstance(records, dict | str | bytes):
            raise ConfigError(
                f"source.kind is {config.kind!r}, which returns a {kind_of(records)}; it must yield dicts"
            )
        for number, record in enumerate(records, 1):
            if isinstance(record, dict):
                yield Found(number, record)
            else:
                detail = f"a {kind_of(record)}, not a dict"
                yield Fault(number, Reason.NOT_AN_OBJECT, detail, LOST)
    except BatchInferenceError:
        raise
    except GeneratorExit:
        raise
    except Exception as error:
        raise StorageError(f"the loader {config.kind} failed after record {number}: {error!r}") from error
