"""Block sizes, hash algorithms and scheduling; all other tests use block 16, sha256 and vLLM's own scheduling."""

import pytest

pytestmark = pytest.mark.any_version

SERVERS = {
    "32-sha256_cbor-synchronous": (
        "--block-size", "32", "--prefix-caching-hash-algo", "sha256_cbor", "--no-async-scheduling",
    ),
    "64-xxhash-in_chunks": (
        "--block-size", "64", "--prefix-caching-hash-algo", "xxhash", "--enable-chunked-prefill",
        "--max-num-batched-tokens", "256",
    ),
}  # fmt: skip
SYSTEM = "Every answer is to be given in as few words as can be, and in none at all where none is needed. " * 40


@pytest.fixture(
    scope="module",
    params=["32-sha256_cbor-synchronous", pytest.param("64-xxhash-in_chunks", marks=pytest.mark.nightly)],
)
def server(request, vllm):
    return vllm(*SERVERS[request.param])


@pytest.fixture
def gateway(server, front):
    server.reset_prefix_cache()
    return front(server)


@pytest.fixture
def block(server):
    return int(server.worker.flags[1])


def test_the_view_is_exact(gateway, block):
    (candidate,) = gateway.candidates()
    assert candidate["residency"] == "exact" and candidate["block_size"] == block


def test_conversations(gateway, block):
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(6):
        answer = gateway.turn(messages, f"Question {turn}", max_tokens=40)
        assert answer.reported % block == 0 and (answer.reported > 500) == bool(turn)
        gateway.chat(messages, stream=True, stream_options={"include_usage": True})
    gateway.exact(12)


def test_prompts_around_an_exact_multiple_are_predicted(gateway, block):
    for length in (1, block - 1, block, block + 1, 4 * block - 1, 4 * block, 4 * block + 1, 9 * block + 5):
        prompt = [100 + (number * length) % 700 for number in range(length)]
        assert gateway.complete(prompt).reported == 0
        assert gateway.complete(prompt).reported == (length - 1) // block * block
        gateway.complete([*prompt, *range(50, 50 + block)])
    gateway.exact(24)


def test_salts_and_several_prompts(gateway, block):
    for salt in ("a", "b"):
        assert gateway.chat(SYSTEM, cache_salt=salt).reported == 0
        assert gateway.chat(SYSTEM + "!", cache_salt=salt).reported > 500
    for end in ("?", "!"):
        gateway.complete([f"{end} {SYSTEM}", f"{end} {SYSTEM} And one more."])
    gateway.exact(6)
