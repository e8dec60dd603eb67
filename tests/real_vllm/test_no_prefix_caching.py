import pytest

pytestmark = [pytest.mark.any_version, pytest.mark.nightly]

PROMPT = "Nothing of this is kept for the next one who asks, however often the same is asked. " * 20


def test_a_worker_without_prefix_caching_is_off(vllm, front):
    gateway = front(vllm("--no-enable-prefix-caching"))
    assert gateway.residency() == "off"
    for number in range(6):
        assert gateway.chat(PROMPT + str(number // 3)).reported == 0
        assert gateway.complete(PROMPT, stream=True, stream_options={"include_usage": True}).reported == 0
    gateway.exact(12)
