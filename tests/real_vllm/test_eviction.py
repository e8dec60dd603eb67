"""With a cache of a few hundred blocks and many prompts, one at a time, the view knows every eviction."""

import random
import time

import pytest

BLOCKS = 300
BLOCK = 16
PROMPTS = 1_200


@pytest.fixture(scope="module")
def tiny(vllm):
    return vllm("--num-gpu-blocks-override", str(BLOCKS), time_scale=0.0)


def prompts():
    """Return prompts about documents, repeated in a skewed order. Together the documents exceed the cache many
    times.
    """
    rng = random.Random(5)
    documents = [[rng.randrange(100, 4_000) for _ in range(rng.randint(1, 60 * BLOCK))] for _ in range(60)]
    for _ in range(PROMPTS):
        document = documents[min(int(rng.expovariate(0.1)), len(documents) - 1)]
        ids = document[: rng.randrange(1, len(document) + 1)] if rng.random() < 0.3 else document
        yield ids + [rng.randrange(100, 4_000) for _ in range(rng.choice([0, 1, 5, BLOCK, 3 * BLOCK]))]


def test_every_prompt_is_predicted_to_the_block(tiny, front):
    gate = front(tiny)
    found, most = 0, 0
    for ids in prompts():
        body = {"model": gate.model, "prompt": ids, "max_tokens": 1}
        answer = gate.send("/v1/completions", body)
        assert answer.predicted == answer.reported, len(ids)
        found += answer.reported
        until_announced(gate, body, (len(ids) - 1) // BLOCK * BLOCK)
        most = max(most, gate.candidates()[0]["blocks"])
    (candidate,) = gate.candidates()
    counted = candidate["predicted_cached"]
    assert counted["equal"] >= PROMPTS and counted["over"] == counted["under"] == 0
    assert candidate["residency"] == "exact"
    assert found > 0.1 * PROMPTS * BLOCK
    assert 0.9 * BLOCKS < most < BLOCKS


def until_announced(gate, body, tokens):
    """Wait for the events of all blocks that the prompt stored, and of the blocks evicted for them."""
    question = {"path": "/v1/completions", "body": body}
    end_s = time.monotonic() + 10.0
    while (
        seen := gate.admin.post("/admin/v1/explain", json=question).json()["candidates"][0]["cached_tokens"]
    ) < tokens:
        assert time.monotonic() < end_s, (seen, tokens)
        time.sleep(0.002)
    assert seen == tokens
