"""Images in prompts: events recorded from vLLM's own cache (`recorded/record_multimodal.py`), in the old and new wire
shape.

Before each request the index must predict the tokens that vLLM then found cached.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from policies.view import Residency, WorkerId
from router.residency.residency_map import ResidencyMap
from tests.support.kv_wire import ids_prompt

RECORDED = Path(__file__).with_name("recorded")
VERSIONS = ("0.23.0", "0.33.0")
SLOT = 0


def extra_keys(request: Mapping[str, Any], block_size: int) -> list[list[object] | None]:
    """Return the images in each block, each by its identifier and its start, counted from the block's start."""
    keys: list[list[object] | None] = []
    for start in range(0, len(request["tokens"]), block_size):
        inside = [
            (image["identifier"], image["offset"] - start)
            for image in request["images"]
            if image["offset"] < start + block_size and start < image["offset"] + image["length"]
        ]
        keys.append(inside or None)
    return keys[: len(request["tokens"]) // block_size]


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((RECORDED / f"multimodal-{request.param}.json").read_text())
    assert found["vllm"] == request.param and len(found["requests"]) >= 6
    return found


@pytest.fixture
def residency(recorded: Mapping[str, Any]) -> ResidencyMap:
    made = ResidencyMap()
    made.add(SLOT, WorkerId("w:1"), recorded["block_size"], 40, True)
    made.slot(SLOT).link_up()
    made.slot(SLOT).replay_ended(True)
    return made


def found(residency: ResidencyMap, request: Mapping[str, Any], keys: Sequence[Any]) -> int:
    match = residency.match(ids_prompt(request["tokens"], keys), [SLOT])[SLOT]
    assert match.residency is Residency.EXACT
    return match.tokens


def test_a_prompt_with_images_finds_its_known_blocks(recorded: Mapping[str, Any], residency: ResidencyMap) -> None:
    for seq, request in enumerate(recorded["requests"]):
        keys = extra_keys(request, recorded["block_size"])
        assert found(residency, request, keys) == request["cached_tokens"], request["name"]
        residency.slot(SLOT).ingest(seq, bytes.fromhex(request["payload"]))
        full = (len(request["tokens"]) - 1) // recorded["block_size"] * recorded["block_size"]
        assert found(residency, request, keys) == full
    assert {request["cached_tokens"] for request in recorded["requests"]} >= {0, 32, 80, 96}


def test_equal_tokens_without_images_are_another_prompt(recorded: Mapping[str, Any], residency: ResidencyMap) -> None:
    first, block = recorded["requests"][0], recorded["block_size"]
    residency.slot(SLOT).ingest(0, bytes.fromhex(first["payload"]))
    before_the_image = first["images"][0]["offset"] // block * block
    other = {**first, "images": [{**first["images"][0], "identifier": "other"}]}
    moved = {**first, "images": [{**first["images"][0], "offset": first["images"][0]["offset"] + 1}]}
    for request in ({**first, "images": []}, other, moved):
        assert found(residency, request, extra_keys(request, block)) == before_the_image


def test_blocks_with_images_are_removed_by_their_engine_keys(
    recorded: Mapping[str, Any], residency: ResidencyMap
) -> None:
    first, dog = recorded["requests"][0], recorded["requests"][2]
    assert first["images"] != dog["images"] and first["tokens"] == dog["tokens"]
    for seq, request in enumerate((first, dog)):
        residency.slot(SLOT).ingest(seq, bytes.fromhex(request["payload"]))
    _, (event,), _ = msgspec.msgpack.decode(bytes.fromhex(first["payload"]))
    named = isinstance(event, dict)
    hashes = event["block_hashes"] if named else event[1]
    gone = {"type": "BlockRemoved", "block_hashes": hashes[2:], "medium": "GPU"} if named else None
    payload = msgspec.msgpack.encode([1.0, [gone or ["BlockRemoved", hashes[2:], "GPU"]], 0])
    residency.slot(SLOT).ingest(2, payload)
    keys = extra_keys(first, recorded["block_size"])
    assert found(residency, first, keys) == 2 * recorded["block_size"]
    full = (len(dog["tokens"]) - 1) // recorded["block_size"] * recorded["block_size"]
    assert found(residency, dog, extra_keys(dog, recorded["block_size"])) == full
