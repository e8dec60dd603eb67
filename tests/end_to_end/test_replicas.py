"""Two gateways with one Redis: one limit, also after a restart, and what each knows of the other's placements."""

import json
import time

import httpx
import pytest

from loadtest.fleet.ports import free_ports
from tests.end_to_end.conftest import ANY_PORT, Gateway
from tests.support.redis import needs_redis
from tests.support.redis_server import redis_server
from tests.support.waiting import block_until

pytestmark = [pytest.mark.slow, needs_redis]

START_S = 60.0
LIMITS = {"default": {"requests_per_minute": 6, "burst_requests": 60}}


class Replica(Gateway):
    def __init__(self, process):
        super().__init__(process)
        block_until(lambda: httpx.get(f"{self.url}/readyz").status_code == 200, START_S)

    def replicas(self):
        return [each for each in self.read("replicas")["replicas"] if each["silent_s"] is not None]

    def account(self):
        (account,) = self.read("limits")["accounts"]
        return account

    def left(self):
        return self.account()["requests"]["remaining"]

    def passed(self, count):
        body = {"model": "warmroute-simulated", "prompt": "a b c", "max_tokens": 1}
        with httpx.Client(base_url=self.url, timeout=30) as client:
            statuses = [client.post("/v1/completions", json=body).status_code for _ in range(count)]
        assert set(statuses) <= {200, 429}
        return statuses.count(200)


@pytest.fixture
def start(processes):
    """Return a function that starts replicas with one Redis and the given workers, until they hear each other."""
    with redis_server() as server:

        def gateway(count, workers, *flags):
            urls = [flag for port in workers for flag in ("--worker", f"http://127.0.0.1:{port}")]
            shared = ("--processes", str(count), "--set", f"redis.url={server.url}")
            return Replica(processes("serve", *ANY_PORT, *shared, *urls, *flags))

        yield gateway


@pytest.fixture
def worker(processes):
    def begin():
        port = free_ports(1)
        processes("worker", "--port", str(port), "--default-max-tokens", "1").wait_for("worker http")
        return port

    return begin


def two_of(start, workers, *flags):
    one, two = start(1, workers, *flags), start(2, workers, *flags)
    block_until(lambda: len(one.replicas()) == len(two.replicas()) == 2, START_S)
    return one, two


def test_two_gateways_admit_one_limit_and_a_restarted_one_remembers(start, worker):
    workers, flags = [worker()], ("--set", f"limits.tenants={json.dumps(LIMITS)}")
    one, two = two_of(start, workers, *flags)
    began_s = time.monotonic()

    def gained():
        """What a bucket has gained since then, with one more for the time between two looks."""
        return (time.monotonic() - began_s) / 10 + 1

    assert one.passed(40) == 40
    block_until(lambda: two.left() <= 60 - 40 + gained(), START_S)
    both = 40 + two.passed(60)
    assert 60 <= both <= 60 + gained()
    block_until(lambda: one.left() <= gained() and one.account()["running_requests"] == 0, START_S)

    two.process.stop()
    again = start(2, workers, *flags)
    block_until(lambda: again.left() < 40, START_S)
    assert both + again.passed(40) <= 60 + gained()
