"""Files go in and out as streams, live as long as they should, and come back byte by byte."""

from __future__ import annotations

import os
from pathlib import Path

import openai
import pytest

from tests.emulator.conftest import DAY, Driver, embedding_line


def peak_memory(pid: int) -> int:
    """The most memory that a process has used, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def test_a_large_file_never_is_in_memory(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    block = os.urandom(1024 * 1024)
    with path.open("wb") as out:
        for _ in range(200):
            out.write(block)
    before = peak_memory(driver.emulator.process.pid)
    with path.open("rb") as file:
        made = driver.client.files.create(file=file, purpose="batch")
    assert made.bytes == path.stat().st_size
    copy = tmp_path / "copy.bin"
    with driver.client.files.with_streaming_response.content(made.id) as response:
        response.stream_to_file(copy)
    assert peak_memory(driver.emulator.process.pid) - before < 60
    with path.open("rb") as one, copy.open("rb") as other:
        assert all(one.read(len(block)) == other.read(len(block)) for _ in range(201))


def test_bytes_come_back_as_they_went_in(driver: Driver) -> None:
    content = '{"a": "one\u2028two\u0085three"}\r\n\x00--boundary\r\n'.encode()
    made = driver.client.files.create(file=('näme "x".jsonl', content), purpose="batch")
    assert driver.client.files.content(made.id).content == content
    assert made.status == "processed"


def test_files_are_listed_in_pages_and_deleted(alone: Driver) -> None:
    made = [alone.upload([embedding_line("a", str(index))]) for index in range(5)]
    assert [each.id for each in alone.client.files.list(limit=2)] == made[::-1]
    assert [each.id for each in alone.client.files.list(order="asc", purpose="batch")] == made
    assert alone.client.files.list(purpose="batch_output").data == []
    assert alone.client.files.delete(made[0]).deleted
    with pytest.raises(openai.NotFoundError):
        alone.client.files.retrieve(made[0])
    assert len(list((alone.emulator.data / "files").iterdir())) == 4


def test_files_expire(driver: Driver) -> None:
    month = driver.upload([embedding_line("a", "x")])
    hour = driver.client.files.create(
        file=("a.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3_600}
    )
    batch_id = driver.create(
        [embedding_line("a", "x")], output_expires_after={"anchor": "created_at", "seconds": 7_200}
    )
    done = driver.after(3_599, batch_id)
    assert driver.client.files.retrieve(hour.id).id == hour.id
    driver.emulator.advance(1)
    with pytest.raises(openai.NotFoundError):
        driver.client.files.retrieve(hour.id)
    assert done.output_file_id is not None
    driver.emulator.advance(2 * 3_600)
    with pytest.raises(openai.NotFoundError):
        driver.client.files.content(done.output_file_id)
    driver.emulator.advance(30 * DAY)
    with pytest.raises(openai.NotFoundError):
        driver.client.files.retrieve(month)


def test_an_upload_without_its_parts_is_refused(alone: Driver) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        alone.client.files.create(file=("a.jsonl", b"{}"), purpose="nonsense")  # type: ignore[arg-type]
    assert refused.value.param == "purpose"
    with pytest.raises(openai.BadRequestError, match="empty"):
        alone.client.files.create(file=("a.jsonl", b""), purpose="batch")
    alone.control("PATCH", "settings", {"max_upload_bytes": 10})
    with pytest.raises(openai.APIStatusError) as large:
        alone.client.files.create(file=("a.jsonl", b"x" * 11), purpose="batch")
    assert large.value.status_code == 413
    assert list((alone.emulator.data / "files").iterdir()) == []
