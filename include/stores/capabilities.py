"""What each vector store can't do, as data. The contract suite holds each denial to be true.

A test that needs what its store denies must fail; where it passes, the table is out of date.
"""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """What the contract suite asks for beyond the plain rows and ids that every store handles."""

    EXACT_VECTORS = "exact_vectors"
    """A vector is read back bit by bit as it was written."""
    EXACT_SEARCH = "exact_search"
    """Search finds the true nearest rows, right after they were written."""
    TYPED_FILTER = "typed_filter"
    """A filter tells the text "1" from the number 1, and true from 1."""
    PARALLEL_WRITERS = "parallel_writers"
    """Several processes may write one index at once."""
    BIG_INTEGERS = "big_integers"
    """Integers in metadata beyond 64 bits come back exactly."""


DENIED: dict[str, frozenset[Capability]] = {
    # Metadata is kept as Lance's JSON, whose numbers are 64 bits wide.
    "lancedb": frozenset({Capability.BIG_INTEGERS}),
}
"""By store: what it can't do."""
