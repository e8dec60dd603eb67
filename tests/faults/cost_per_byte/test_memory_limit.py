"""A gateway in a memory cgroup of 1 GiB survives every attack, and serves other clients meanwhile."""

import json
import threading

import pytest

from loadtest.soak.attack import shapes
from loadtest.soak.attack.clients import attack, flood, request
from loadtest.soak.attack.shapes import CHAT, Body

pytestmark = [pytest.mark.slow, pytest.mark.measures]
GIB = 1_073_741_824
MB = 1_000_000
SECONDS = 6.0


def floods(bench, models):
    flood(bench.address, "livez", 8, SECONDS)


def bodies(bench, models):
    made = [
        request(shapes.build(CHAT, shape, 15 * MB, models["local"], f"word {number}"), None)
        for number, shape in enumerate(["short_messages", "empty_lists", "text", "tools"] * 2)
    ]
    attack(bench.address, lambda number: made[number % 8], 8, SECONDS)


def endless_tokenize(bench, models):
    body = {"model": "hostile", "max_tokens": 1, "messages": [{"role": "user", "content": "Why? " * 200}]}

    def ask(number):
        return request(Body(CHAT, json.dumps(body | {"user": str(number)}).replace("Why", str(number)).encode()), None)

    attack(bench.address, ask, 20, SECONDS)


@pytest.mark.parametrize("attacker", [floods, bodies, endless_tokenize])
def test_under_1_gib_the_gateway_survives_and_serves_others(memory_group, own_ground, others, models, attacker):
    group = memory_group(GIB)
    workers = [own_ground.sink(models["local"], own_ground.model_dir), own_ground.worker()]
    workers.append(own_ground.sink("hostile", None, "--endless", "/tokenize"))
    bench = own_ground.bench(workers, group=group)
    with others(bench.address) as beside:
        thread = threading.Thread(target=attacker, args=(bench, models))
        thread.start()
        thread.join()
    print(f"{attacker.__name__}: peak {(group.peak_bytes or 0) / MB:.0f} MB, {len(beside.took_s)} chats of others, "
          f"the slowest took {max(beside.took_s):.2f} s, failed: {beside.failed}")  # fmt: skip
    assert group.kills == 0 and bench.process.alive, bench.process.tail()
    assert not beside.failed
    assert len(beside.took_s) > 5
