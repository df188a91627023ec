"""The one pointer that readers read: `corpora/{corpus}/live.json`, replaced atomically.

A reader must embed its question with the model its index was built with, so the pointer names the
model beside the index; a store's alias couldn't.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from include.contracts import JSON
from include.errors import IndexMissing
from include.storage import Storage


@dataclass(frozen=True, slots=True)
class LivePointer:
    """What a reader needs: where the index is, and how its questions must be embedded.

    `connection` is the name of an Airflow connection, never a secret. `dimensions` is the width of
    its vectors, `input_type` what the provider calls the embedding of documents ("" where it makes
    no difference). `params` are the parameters of the embedding call that change its answer, as they
    were sent for the documents. `published_at` is ISO 8601, set by `publish`.
    """

    index: str
    store: str
    store_url: str
    model: str
    dimensions: int
    space: str
    chunking: str
    provider: str
    endpoint: str
    connection: str
    run: str
    input_type: str = ""
    params: dict[str, JSON] = field(default_factory=dict)
    published_at: str = ""

    def as_json(self) -> dict[str, JSON]:
        """The pointer as `live.json` holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, JSON]) -> LivePointer:
        """Read a pointer; fields that a later version of this code wrote are left aside."""
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in data.items() if name in known})  # type: ignore[arg-type]


def pointer_path(corpus: str) -> str:
    """Where a corpus's pointer lies, relative to the storage root."""
    return f"corpora/{corpus}/live.json"


def find_pointer(storage: Storage, corpus: str) -> LivePointer | None:
    """The corpus's pointer, or None while nothing was ever published."""
    path = pointer_path(corpus)
    return LivePointer.from_json(storage.read_json(path)) if storage.exists(path) else None


def read_pointer(storage: Storage, corpus: str) -> LivePointer:
    """The corpus's pointer. Raises IndexMissing while nothing was ever published."""
    pointer = find_pointer(storage, corpus)
    if pointer is None:
        raise IndexMissing(
            f"{storage.url(pointer_path(corpus))} isn't there: no index of {corpus} is published yet. "
            f"Run initial_ingest__{corpus} without sample or limit"
        )
    return pointer


def write_pointer(storage: Storage, corpus: str, pointer: LivePointer) -> None:
    """Send readers to another index."""
    storage.write_json(pointer_path(corpus), pointer.as_json())
