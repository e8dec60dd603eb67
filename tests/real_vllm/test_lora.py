"""The base model and two LoRA adapters never share a block with one another; each shares blocks among its own
requests.
"""

import json

import pytest

pytestmark = pytest.mark.any_version

PROMPT = "An adapter changes what a token's keys and values are, so no block of it is of use to another. " * 15


def adapter(folder):
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def adapters(vllm, tmp_path_factory):
    """A server with adapters a and b, which clock mode takes without weights."""
    folders = {name: adapter(tmp_path_factory.mktemp(f"adapter_{name}")) for name in "ab"}
    return vllm("--enable-lora", "--lora-modules", *(f"{name}={folder}" for name, folder in folders.items()))


@pytest.fixture
def gateway(adapters, front):
    adapters.reset_prefix_cache()
    return front(adapters)


def models(gateway):
    served = [model["id"] for model in gateway.workers()[0]["models"]]
    assert set(served) == {gateway.model, "a", "b"}
    return gateway.model, "a", "b"


def test_adapters_and_the_base_do_not_share(gateway):
    for model in models(gateway):
        assert gateway.chat(PROMPT, model=model).reported == 0
        assert gateway.chat(PROMPT, model=model).reported > 200
    for model in models(gateway):
        assert gateway.chat(PROMPT + "More.", model=model).reported > 200
        assert gateway.complete(PROMPT, model=model).reported == 0
        assert gateway.complete([3, 4, 5] * 30, model=model).reported == 0
        assert gateway.complete([3, 4, 5] * 30, model=model).reported == 80
    gateway.exact(18)


def test_conversations_with_each(gateway):
    talks = {model: [] for model in models(gateway)}
    for turn in range(4):
        for model, messages in talks.items():
            gateway.turn(messages, f"{turn}: {PROMPT[:300]}", model=model, max_tokens=24)
    gateway.exact(12)


def test_salted_adapters(gateway):
    for model in models(gateway):
        for salt in ("a", "b", "s"):
            assert gateway.chat(PROMPT, model=model, cache_salt=salt).reported == 0
            assert gateway.chat(PROMPT + "!", model=model, cache_salt=salt).reported > 200
    gateway.exact(18)


def test_the_gateway_loads_and_unloads_an_adapter(vllm, front, tmp_path):
    server = vllm("--enable-lora", environment=(("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True"),))
    gateway = front(server, flags=("--set", 'worker_operations=["load-lora", "unload-lora"]'))
    live = {"all": True, "lora_name": "live", "lora_path": str(adapter(tmp_path))}

    def operate(operation):
        return gateway.admin.post("/admin/v1/worker-operations", json={"operation": operation, **live})

    answer = operate("load-lora")
    assert (answer.status_code, answer.json()["results"][0]["outcome"]) == (200, "done")
    served = lambda: [model["id"] for model in gateway.workers()[0]["models"]]  # noqa: E731
    gateway.wait_for(lambda: "live" in served(), "the adapter among the models")
    assert gateway.chat(PROMPT, model="live").reported == 0
    assert gateway.chat(PROMPT, model="live").reported > 200
    again = operate("load-lora")
    assert (again.status_code, "already been loaded" in again.json()["results"][0]["detail"]) == (207, True)
    assert operate("unload-lora").status_code == 200
    gateway.wait_for(lambda: "live" not in served(), "the adapter gone")
    gateway.exact(2)
