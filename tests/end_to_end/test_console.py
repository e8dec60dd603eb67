"""The console in headless Chromium, over a running gateway with embedded workers under light traffic.

One fleet for all tests: they read, and the last one kills a worker.
"""

import shutil
import threading
from contextlib import suppress
from itertools import count

import httpx
import pytest

from loadtest.demo import fleet
from loadtest.demo.run import wait_until_ready

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_MS = 30_000
ROUTES = '[{"name":"chats","slo":{"ttft":5,"tpot":1}}]'
SERVE = ("--set", "health.probe_interval_s=0.2", "--set", "prefix_name_header=x-prompt-name", "--set")
NAME = "rivers v1"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: install the package chromium"),
    pytest.mark.timeout(180),
]


class Chats:
    """Streams of chats that share their beginning, one after the other, with a pause."""

    def __init__(self, url, model):
        self._url, self._model = url, model
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(60)

    def _run(self):
        with httpx.Client(base_url=self._url, timeout=30, headers={"x-prompt-name": NAME}) as client:
            for number in count():
                text = "Name three rivers of the north, and say where each begins. " * 20 + f"Question {number}."
                body = {"model": self._model, "messages": [{"role": "user", "content": text}]}
                body |= {"max_tokens": 40, "stream": True, "stream_options": {"include_usage": True}}
                with suppress(httpx.HTTPError):  # its worker is killed
                    client.post("/v1/chat/completions", json=body)
                if self._over.wait(0.1):
                    return


@pytest.fixture(scope="module")
def running():
    """Three workers and a gateway, with chats."""
    with fleet.running(3, "marginal_cost", ("--time-scale", "0.05"), (*SERVE, f"routes={ROUTES}")) as running:
        model = wait_until_ready(running.admin_url, 3)
        with Chats(running.public_url, model):
            yield running


@pytest.fixture(scope="module")
def page(running):
    """The console in one tab; it must raise no error and break no rule of its policy."""
    wrong = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 820})
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.goto(running.admin_url)
        yield page
        browser.close()
    assert wrong == []


@pytest.fixture
def opened(page):
    def go(panel):
        page.get_by_role("link", name=panel, exact=True).click()
        shown(page.get_by_role("heading", name=panel, exact=True))
        return page

    return go


def expect(found):
    return playwright.expect(found)


def shown(found):
    expect(found).to_be_visible(timeout=WAIT_MS)


def workers(running):
    return [url.removeprefix("http://") for url in running.worker_urls]


def test_the_fleet_shows_state_load_and_latencies(opened, running):
    page = opened("Fleet")
    shown(page.get_by_text("3 workers: 3 ready"))
    for worker in workers(running):
        expect(page.get_by_role("row", name=worker)).to_contain_text("exact", timeout=WAIT_MS)
    shown(page.get_by_role("img", name="TTFT over time").first)
    shown(page.get_by_role("img", name="token gap over time").first)


def test_an_opened_decision_shows_what_was_predicted_and_what_came(opened):
    page = opened("Decisions")
    page.get_by_label("outcome").select_option("finished")
    ended = page.locator("tbody tr", has_text="finished").first
    ended.get_by_role("button").click()
    shown(page.get_by_text("(chosen)"))
    expect(page.locator(".candidate")).to_have_count(3, timeout=WAIT_MS)
    shown(page.get_by_text("came after"))
    page.get_by_role("button", name="Close").click()


def test_another_rule_is_asked_about_the_latest_decisions(opened):
    page = opened("Policies")
    page.get_by_label("Rule").select_option("round_robin")
    page.get_by_role("button", name="Ask").click()
    shown(page.get_by_text("would have gone elsewhere"))
    expect(page.get_by_role("region", name="Recorded and asked").locator("tbody tr")).to_have_count(3, timeout=WAIT_MS)
    expect(page.get_by_role("region", name="Revisions").locator("tbody tr")).to_have_count(1, timeout=WAIT_MS)


def test_the_shared_prefix_has_copies_and_the_name_that_clients_send(opened):
    page = opened("Prefixes")
    row = page.get_by_role("region", name="Hot prefixes").locator("tbody tr", has_text=NAME).first
    shown(row)
    assert int(row.locator("td").nth(5).inner_text()) >= 1


def test_the_diagnosis_of_a_healthy_fleet_finds_nothing(opened):
    page = opened("Diagnosis")
    shown(page.get_by_text("requests ended in the last"))
    shown(page.get_by_text("No check has found anything."))


def test_traffic_comes_by_route_and_model(opened):
    page = opened("Traffic")
    latest = page.get_by_role("region", name="The last ten seconds by route").locator("tbody tr")
    expect(latest.first).to_contain_text("chats / ", timeout=WAIT_MS)
    expect(latest.first).to_contain_text("%", timeout=WAIT_MS)
    expect(page.locator(".u-over")).to_have_count(9, timeout=WAIT_MS)


def test_a_worker_that_is_killed_while_watched_becomes_unhealthy(opened, running):
    page = opened("Fleet")
    shown(page.get_by_text("3 workers: 3 ready"))
    running.workers[0].kill()
    expect(page.get_by_role("row", name=workers(running)[0])).to_contain_text("unhealthy", timeout=WAIT_MS)
    shown(page.get_by_text("1 unhealthy"))
