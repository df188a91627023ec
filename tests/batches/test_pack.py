"""Packing: nothing is sent that has an answer, is in flight or is blocked; nothing is left out."""

from __future__ import annotations

import pytest

from include.batches import shards, submissions
from include.batches.shard_files import keys_path, requests_path
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.storage import Storage
from tests.batches.packing import SMALL, Bench
from tests.batches.submitting import openai_provider
from tests.conftest import Emulator

TEXTS = [f"text number {number}" for number in range(10)]


@pytest.fixture
def provider(emulator: Emulator) -> OpenAIBatches:
    return openai_provider(emulator.openai_url)


def test_a_run_goes_from_rows_to_accounts(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Emulator
) -> None:
    bench = Bench(ledger, storage, provider, [*TEXTS, TEXTS[0]])
    report = bench.pack(SMALL)
    print(report)
    assert (report.items, report.sent, report.duplicates, len(report.shards)) == (10, 10, 1, 3)
    print(bench.process(emulator))
    print(bench.pack_retry())
    print(bench.bury())
    accounts = bench.reconcile()
    assert (accounts.items, accounts.succeeded) == (10, 10)
