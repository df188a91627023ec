"""`held://`: an object store in a folder of this machine, whose changes pass a gate.

As on an object store, a file appears whole when it is closed, a file that isn't closed never does, and
folders are made by themselves.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from tests.faults.gate import passing

PROTOCOL = "held"
_DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}")


class HeldFiles(AbstractFileSystem):  # type: ignore[misc]
    """Files of a local folder, behind put and delete as an object store has them."""

    protocol = PROTOCOL
    cachable = False
    root_marker = "/"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._local = LocalFileSystem()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = str(path).removeprefix(f"{PROTOCOL}://")
        return text.rstrip("/") or "/"

    def unstrip_protocol(self, name: str) -> str:
        return f"{PROTOCOL}://{self._strip_protocol(name)}"

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self._local.ls(self._strip_protocol(path), detail=detail)

    def info(self, path: str, **options: Any) -> Any:
        return self._local.info(self._strip_protocol(path))

    def modified(self, path: str) -> Any:
        return self._local.modified(self._strip_protocol(path))

    def created(self, path: str) -> Any:
        return self._local.created(self._strip_protocol(path))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            return open(path, "rb")
        if mode != "wb":
            raise ValueError(f"an object store has no mode {mode!r}")
        return _Put(path)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        with open(lpath, "rb") as source, _Put(self._strip_protocol(rpath)) as target:
            shutil.copyfileobj(source, target)

    def rm_file(self, path: str) -> None:
        self._delete(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for each in [path] if isinstance(path, str) else path:
            self._delete(each)

    def _delete(self, path: str) -> None:
        path = self._strip_protocol(path)
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        with passing("storage", f"delete {_short(path)}"):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


class _Put(io.BufferedWriter):
    """An object that is put when it is closed, and isn't after `discard`."""

    def __init__(self, path: str) -> None:
        self._target = path
        # Not in the storage: what isn't put yet is nowhere on an object store.
        descriptor, self._temporary = tempfile.mkstemp(prefix="put-")
        super().__init__(io.FileIO(descriptor, "wb"))

    def discard(self) -> None:
        """Throw away what was written."""
        super().close()
        os.unlink(self._temporary)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        with passing("storage", f"put {_short(self._target)}"):
            os.makedirs(os.path.dirname(self._target), exist_ok=True)
            os.replace(self._temporary, self._target)


def _short(path: str) -> str:
    """The end of a path, which tells what it is; ids that are drawn anew each time aren't told."""
    return _DRAWN.sub("…", "/".join(path.split("/")[-3:]))


fsspec.register_implementation(PROTOCOL, HeldFiles, clobber=True)
