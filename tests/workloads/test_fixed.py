"""What a fixed corpus becomes, byte for byte: its keys, its lines' ids, and the names of its shards."""

from __future__ import annotations

import pytest

from include.workloads import steps
from tests.workloads.conftest import YAML, World

DOCUMENTS = [
    {"id": "a", "title": "A", "text": "The first text."},
    {"id": "b", "title": "B", "text": 'Grüße, 吾輩は猫である, and 🙂; "quoted"\\ \u2028 separated.'},
    {"id": "c", "title": "C", "text": "The third text."},
]


@pytest.mark.parametrize(
    ("inputs", "shard", "custom_ids"),
    [
        (
            1,
            "4401ed4039d96f08ae35efe00bb28cd4",
            [
                "3c39a13505530fe6c0ce7f488ee03bb3",
                "9e56e67579ce7fccec0ca3fd011dc43c",
                "e1174424e5bbe0c008765be84a8d9c07",
            ],
        ),
        (
            2,
            "6ae8076ddd7787870d7771d1210452a7",
            ["0fa6346d421de6197862e406e761d359", "e1174424e5bbe0c008765be84a8d9c07"],
        ),
    ],
)
def test_a_shards_name_and_its_lines(world: World, inputs: int, shard: str, custom_ids: list[str]) -> None:
    world.configure(YAML.replace("dimensions: 32", f"dimensions: 32, inputs_per_line: {inputs}"))
    world.put("all", *DOCUMENTS)
    ref, _ = world.begin()
    steps.probe(world.services, ref)
    steps.pack(world.services, ref)
    with world.services.ledger() as ledger:
        (found,) = ledger.execute("select shard from shards").fetchall()
    with world.services.storage.parquet_file(f"shards/{found['shard']}/keys.parquet") as file:
        lines = list(dict.fromkeys(file.read()["custom_id"].to_pylist()))
    assert (found["shard"], lines) == (shard, custom_ids)
