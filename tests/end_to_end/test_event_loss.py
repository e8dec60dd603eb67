"""Cache views survive lost events and a restarted gateway: predictions stay equal to reports."""

import threading
import time

import httpx
import pytest
import zmq

from loadtest.demo import fleet
from loadtest.demo.run import wait_until_ready
from loadtest.fleet.process import Process, warmroute

pytestmark = pytest.mark.slow

FLAGS = ("worker", "--port", "0", "--time-scale", "0.02", "--seed", "3")


def ask(url, model, text):
    """Request one short answer. Return the cached tokens that the response header predicts, and the cached tokens that
    the response reports.
    """
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    predicted = answer.headers["x-warmroute-predicted-cached-tokens"]
    reported = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return int(predicted), reported


class LossyRelay:
    """A publisher between a worker and the gateway that drops the next `drop` batches."""

    def __init__(self, source: str) -> None:
        self._context = zmq.Context()
        self._source = self._context.socket(zmq.SUB)
        self._source.connect(source)
        self._source.subscribe(b"")
        self._sink = self._context.socket(zmq.PUB)
        port = self._sink.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.drop = 0
        self.dropped = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pump)
        self._thread.start()

    def _pump(self) -> None:
        while not self._stop.is_set():
            if not self._source.poll(20):
                continue
            frames = self._source.recv_multipart()
            if self.drop:
                self.drop -= 1
                self.dropped += 1
            else:
                self._sink.send_multipart(frames)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)


@pytest.fixture
def worker():
    """An embedded worker whose address and KV event endpoints are known."""
    process = Process(warmroute(*FLAGS), "worker")
    url = process.wait_for(r"worker (http://[^\s]+)").group(1)
    found = process.wait_for(r"kv events (\S+) replay (\S+)")
    yield url, found.group(1), found.group(2)
    process.stop()


def test_dropped_events_are_replayed_and_the_view_is_exact_again(start, worker):
    url, events, replay = worker
    system = start(workers=1)
    relay = LossyRelay(events)
    try:
        source = {"endpoint": relay.endpoint, "replay_endpoint": replay, "topic": "kv-events"}
        added = system.admin.post("/admin/v1/workers", json={"url": url, "kv_events": source}).json()["id"]
        (first,) = set(system.workers()) - {added}
        assert system.admin.post(f"/admin/v1/workers/{first}/drain").status_code == 200
        system.wait_for(lambda: view(system, added).get("self_test"), what="the self-test")
        assert view(system, added)["residency"] == "exact"
        relay.drop = 2
        for text in ("lost one " * 60, "lost two " * 60):
            assert ask(system.url, system.model, text) == (0, 0)
        system.wait_for(lambda: relay.dropped == 2, what="the loss")
        assert ask(system.url, system.model, "noticed " * 60) == (0, 0)
        system.wait_for(lambda: view(system, added)["events"]["gaps"] == 1, what="the gap")
        system.wait_for(lambda: view(system, added)["events"]["replayed_batches"] >= 2, what="the replay")
        assert view(system, added)["residency"] == "exact"
        for text in ("lost one " * 60, "lost two " * 60):
            predicted, reported = ask(system.url, system.model, text)
            assert predicted == reported > 0
    finally:
        relay.close()


def test_a_restarted_gateway_learns_warm_caches_by_replay(worker, monkeypatch):
    monkeypatch.setenv("WARMROUTE_HEADERS__PREDICTED_CACHED_TOKENS", "true")
    url, _, _ = worker
    served = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    texts = [f"{word} is a word that comes again. " * 30 for word in ("North", "South", "East")]
    for text in texts:  # directly, without a gateway
        body = {"model": served, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20).status_code == 200
    for _ in range(2):  # two gateways, one after the other; neither has seen the prompts before
        gateway = Process(
            warmroute("serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--worker", url), "gateway"
        )
        try:
            public = gateway.wait_for(rf"public port.*{fleet.URL}").group(1)
            model = wait_until_ready(gateway.wait_for(rf"admin port.*{fleet.URL}").group(1), 1)
            for text in texts:
                predicted, reported = ask(public, model, text)
                assert predicted == reported > 100
                time.sleep(0.05)  # the events of this answer
        finally:
            gateway.stop()


def view(system, worker_id):
    """Return the gateway's view of the worker's cache; empty until the worker has been probed."""
    candidates = system.workers()[worker_id]["candidates"]
    return candidates[0] if candidates else {}
