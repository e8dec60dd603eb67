"""The console in headless Chromium, over a real admin port. WARMROUTE_SCREENSHOTS=DIR writes pictures for the docs."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from backends.worker import LoadReport
from policies.spec import PolicySpec
from router.admin.app import build_admin
from router.admin.http.server import AdminServer
from router.config.model import Config, DecisionLogConfig, RateLimitsConfig
from router.config.sample import descriptions
from router.diagnosis.condition import Severity
from router.diagnosis.diagnose import ServiceLevel
from router.diagnosis.finding import Finding, table
from router.metrics.registry import Registry
from router.placement.decision_log.decisions import DecisionLog
from router.placement.metrics import PlacementMetrics
from router.placement.request import Usage
from router.process.listeners import admin_socket
from router.requests.metrics import GatewayMetrics
from router.security.token import AdminTokens, TokenSettings
from router.telemetry.exposition import instruments_of
from router.telemetry.history import TrafficHistory
from tests.router.placement.test_decision_log import recorded
from tests.support.metrics import count_prompt

axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe-playwright-python is not installed")
playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_MS = 20_000
MODEL = "m"
BATCH = ("/v1/completions", "batch", MODEL)
PANELS = ("Fleet", "Traffic", "Decisions", "Policies", "Prefixes", "Diagnosis", "Planner")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: install the package chromium"),
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),  # as the browser, which starts once
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def port(system):
    """Return a function that serves the system's admin port, with tokens or without."""
    servers = []

    async def serve(tokens=None):
        config = Config(admin_port=0)
        server = AdminServer(build_admin(system, tokens), admin_socket(config), config)
        await server.start()
        servers.append(server)
        return f"http://{server.address}"

    yield serve
    for server in servers:
        await server.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def opened(browser, port):
    """Return a function that opens the console; the page must raise no error and break no rule of its policy."""
    wrong, contexts = [], []

    async def go(panel="fleet", tokens=None, **context):
        address = await port(tokens)
        contexts.append(await browser.new_context(viewport={"width": 1400, "height": 820}, **context))
        page = await contexts[-1].new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
        await page.goto(f"{address}/#{panel}")
        return page

    yield go
    for context in contexts:
        await context.close()
    assert wrong == []


def expect(found):
    return playwright.expect(found)


async def visible(found):
    await expect(found).to_be_visible(timeout=WAIT_MS)


def fill(system, workers=3, requests=12):
    for number in range(workers):
        worker = system.join(f"http://10.0.0.{number + 1}:8000")
        system.fleet.load_reported(worker, LoadReport(0, number, 0, 0.2 + 0.1 * (number % 7)), system.clock_s)
    for number in range(requests):
        ticket = system.core.dispatcher.dispatch(system.request(f"chat-{number}", 3_000), system.clock_s)
        system.core.tickets.first_token(ticket, system.clock_s + 0.12)
        system.core.tickets.progress(ticket, 64, [0.012] * 63, system.clock_s + 0.9)
        system.core.tickets.finished(ticket, Usage(3_000, 64, 0), system.clock_s + 1.0)


def traffic(system, points=60):
    """Give the last ten minutes some streams."""
    at, registry = 0.0, Registry()
    metrics, placement = GatewayMetrics(registry), PlacementMetrics(registry)
    system.traffic = TrafficHistory(lambda: 1_700_000_000.0 + at)
    for number in range(points):
        at = 10.0 * number
        for _ in range(5 + number % 4):
            labels = ("/v1/chat/completions", "default", MODEL)
            metrics.ttft.observe(0.2 + 0.01 * number, labels)
            metrics.itl.at(labels).observe_all([0.012] * 32)
            metrics.prompt_lengths.observe(2_000, labels)
            metrics.output_lengths.observe(60, labels)
            count_prompt(registry, labels, 2_000, 1_000)
            placement.comparisons.add(1.0, ("10.0.0.1:8000", "over"))
        count_prompt(registry, BATCH, 1_000, 100)
        placement.misrouted.add(1.0, ("10.0.0.1:8000",))
        metrics.errors.add(1.0, ("stream_idle_timeout", "stream", *BATCH[1:]))
        snapshot = instruments_of(registry)
        snapshot.values["warmroute_held_requests"] = {BATCH[1:]: 3}
        system.traffic.observe(snapshot)


SINCE = "2026-01-02T03:04:05+00:00"


async def hurting(system):
    evidence = table("Gaps between tokens", ["worker", "gap p95 s"], [["10.0.0.1:8000", 0.31], ["10.0.0.2:8000", 0.28]])
    tries = ["fewer streams", "lanes"]
    advice = Finding(
        "decode_scheduling", Severity.ADVICE, "Streams stutter.", "On 2 of 3 workers.", [evidence], tries, SINCE
    )
    why = ["left (10.0.0.1:8000) is unhealthy: connection refused"]
    outage = Finding("no_worker_ready", Severity.OUTAGE, "No worker is ready.", "", [], ["start one"], SINCE, why=why)
    level = ServiceLevel("chat", "ttft", 900, 100, out=True)
    now = await system.diagnosis()
    found = msgspec.structs.replace(now, findings=[outage, advice], service_levels=[level])

    async def diagnosis():
        return found

    system.diagnosis = diagnosis


async def picture(page, name):
    folder = os.environ.get("WARMROUTE_SCREENSHOTS")
    if folder:
        await page.screenshot(path=Path(folder) / f"console-{name}.png")


def row(page, worker):
    return page.get_by_role("row", name=worker)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
async def test_every_panel_is_accessible_in_light_and_dark(opened, system, scheme):
    fill(system)
    system.clock_s += 90.0
    traffic(system)
    await hurting(system)
    page = await opened(color_scheme=scheme)
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(246, 247, 245)" if scheme == "light" else "rgb(18, 24, 22)")
    for panel in PANELS:
        await page.get_by_role("link", name=panel, exact=True).press("Enter")
        await visible(page.get_by_role("heading", name=panel, exact=True))
        if panel == "Decisions":
            await page.get_by_role("button", name="chat-11").click()
            await visible(page.get_by_text("(chosen)"))
        if panel == "Traffic":
            await expect(page.locator(".u-over")).to_have_count(9, timeout=WAIT_MS)
        if panel == "Policies":
            await visible(page.get_by_role("heading", name="Revisions"))
            await page.get_by_label("Rule").select_option("random")
            await page.get_by_role("button", name="Ask").click()
            await visible(page.get_by_role("region", name="Recorded and asked"))
            await page.get_by_role("region", name="The newest differences").scroll_into_view_if_needed()
        found = await axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        await picture(page, f"{panel.lower()}-{scheme}")


async def test_a_worker_that_dies_while_watched_changes_its_row(opened, system):
    fill(system)
    page = await opened()
    await expect(row(page, "10.0.0.2:8000")).to_contain_text("ready", timeout=WAIT_MS)
    for _ in range(5):
        system.fleet.probe_failed("10.0.0.2:8000", "connection refused", system.clock_s)
    await expect(row(page, "10.0.0.2:8000")).to_contain_text("unhealthy", timeout=WAIT_MS)
    await visible(page.get_by_text("3 workers: 2 ready, 1 unhealthy"))


async def test_512_workers_are_drawn_where_they_are_visible(opened, system):
    fill(system, workers=0, requests=0)
    for number in range(512):
        system.join(f"http://10.0.{number // 256}.{number % 256}:8000")
    page = await opened()
    await visible(page.get_by_text("512 workers: 512 ready"))
    assert 10 < await page.locator("tbody tr").count() < 60
    await page.get_by_role("region", name="Workers").evaluate("box => { box.scrollTop = box.scrollHeight }")
    await visible(row(page, "10.0.1.255:8000"))
    assert await page.locator("tbody tr").count() < 60
    await page.get_by_label("Filter by name").fill("10.0.0.77:")
    await visible(row(page, "10.0.0.77:8000"))
    await expect(page.locator("tbody tr")).to_have_count(1, timeout=WAIT_MS)


async def test_a_worker_is_drained_and_undrained_by_keyboard_alone(opened, system):
    fill(system, workers=1, requests=0)
    page = await opened()
    await visible(row(page, "10.0.0.1:8000"))
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.textContent") == "Drain":
            break
    await page.keyboard.press("Enter")
    await visible(page.get_by_role("dialog", name="Drain 10.0.0.1:8000?"))
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0, timeout=WAIT_MS)
    assert not system.fleet.get("10.0.0.1:8000").draining
    await page.wait_for_function("document.activeElement.textContent === 'Drain'", timeout=WAIT_MS)
    await page.keyboard.press("Enter")
    await visible(page.get_by_role("dialog"))
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(row(page, "10.0.0.1:8000")).to_contain_text("draining, 0 left", timeout=WAIT_MS)
    assert system.fleet.get("10.0.0.1:8000").draining
    await page.get_by_role("button", name="Undrain").press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Undrain").press("Enter")
    await visible(page.get_by_role("button", name="Drain", exact=True))
    assert not system.fleet.get("10.0.0.1:8000").draining


async def test_a_token_that_may_read_sees_all_and_changes_nothing(opened, system):
    fill(system)
    tokens = AdminTokens(TokenSettings("the-boss-of-all-tokens", None, (f"eve read sha256:{_digest('watch')}",)))
    page = await opened(tokens=tokens)
    await page.get_by_label("Token").fill("wrong")
    await page.get_by_role("button", name="Continue").click()
    await visible(page.get_by_text("The gateway does not know this token."))
    await page.get_by_label("Token").fill("watch")
    await page.get_by_role("button", name="Continue").click()
    await visible(page.get_by_text("eve, read"))
    await visible(row(page, "10.0.0.1:8000"))
    assert await page.get_by_role("button", name="Drain").count() == 0
    await page.get_by_role("link", name="Policies").click()
    await visible(page.get_by_text("A change needs a token with the role admin."))
    assert await page.get_by_role("button", name="Apply").count() == 0
    stored = await page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
    assert stored == [0, 0, ""]
    await page.reload()
    await visible(page.get_by_label("Token"))


async def test_decisions_arrive_while_watched_and_show_their_terms(opened, system):
    fill(system, requests=1)
    page = await opened("decisions")
    await visible(page.get_by_role("button", name="chat-0"))
    system.serve("late-one", 2_000)
    await page.get_by_role("button", name="late-one").click()
    await expect(page.locator(".candidate")).to_have_count(3, timeout=WAIT_MS)
    await visible(page.get_by_text("(chosen)"))
    assert await page.locator(".legend li").count() > 2
    await page.get_by_label("worker").fill("no such worker")
    await page.get_by_label("worker").press("Enter")
    await visible(page.get_by_text("No decision matches."))


async def test_filters_find_decisions_beyond_the_newest_ones_and_older_pages_follow(opened, system):
    system.core.log = DecisionLog(1_000)
    system.core._placer._log = system.core.log
    fill(system, requests=0)
    system.serve("the-oldest", 2_000)
    for number in range(250):
        system.serve(f"r{number}", 64)
    page = await opened("decisions")
    rows, older = page.locator("tbody tr"), page.get_by_role("button", name="Show older ones")
    await expect(rows).to_have_count(100, timeout=WAIT_MS)
    await page.get_by_label("request id").fill("the-oldest")
    await page.get_by_label("request id").press("Enter")
    await expect(rows).to_have_count(1, timeout=WAIT_MS)
    await visible(page.get_by_role("button", name="the-oldest"))
    await expect(older).to_have_count(0, timeout=WAIT_MS)
    await page.get_by_label("request id").fill("")
    await page.get_by_label("request id").press("Enter")
    for shown in (200, 251):
        await older.click()
        await expect(rows).to_have_count(shown, timeout=WAIT_MS)
    await expect(rows.last).to_contain_text("the-oldest", timeout=WAIT_MS)
    await expect(older).to_have_count(0, timeout=WAIT_MS)


async def test_a_decision_leaves_the_list_of_running_ones_when_it_ends(opened, system):
    fill(system, requests=3)
    ticket = system.core.dispatcher.dispatch(system.request("runs", 200), system.clock_s)
    page = await opened("decisions")
    await page.get_by_label("outcome").select_option("running")
    await expect(page.locator("tbody tr")).to_have_count(1, timeout=WAIT_MS)
    system.core.tickets.cancelled(ticket, system.clock_s)
    await visible(page.get_by_text("No decision matches."))
    await page.get_by_label("outcome").select_option("cancelled")
    await visible(page.get_by_role("button", name="runs"))


async def test_a_drag_over_a_chart_zooms_all_charts_and_a_button_shows_the_whole_hour(opened, system):
    traffic(system)
    page = await opened("traffic")
    await visible(page.get_by_role("cell", name=f"default / {MODEL}"))
    await expect(page.get_by_label("59 points of the last hour")).to_have_count(1, timeout=WAIT_MS)
    box = await page.locator(".u-over").first.bounding_box()
    y = box["y"] + box["height"] / 2
    whole = page.get_by_role("button", name="Show the whole hour")
    await expect(whole).to_be_disabled(timeout=WAIT_MS)
    await page.mouse.move(box["x"] + box["width"] * 0.3, y)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
    await page.mouse.up()
    await expect(whole).to_be_enabled(timeout=WAIT_MS)
    await whole.click()
    await expect(whole).to_be_disabled(timeout=WAIT_MS)


async def test_traffic_is_shown_by_route_and_model(opened, system):
    traffic(system, points=3)
    page = await opened("traffic")
    wrong = system.traffic.points[-1].misrouted_share
    whole = page.get_by_role("region", name="The last ten seconds of all requests")
    await expect(whole.get_by_role("columnheader", name="Incorrectly routed")).to_be_visible(timeout=WAIT_MS)
    await expect(whole.get_by_role("cell", name=f"{round(wrong * 100)} %")).to_have_count(1, timeout=WAIT_MS)
    latest = page.get_by_role("region", name="The last ten seconds by route").locator("tbody tr")
    await expect(latest).to_contain_text([f"batch / {MODEL}", f"default / {MODEL}"], timeout=WAIT_MS)
    await expect(latest).to_contain_text(["10 %13", "50 %00"], timeout=WAIT_MS)
    legends = page.locator("article", has_text="Cached share of prompt tokens").locator(".u-label")
    await expect(legends).to_have_text(
        ["Time", f"batch / {MODEL} cached", f"default / {MODEL} cached"], timeout=WAIT_MS
    )
    await page.get_by_label("Route and model").select_option(f"batch / {MODEL}")
    await expect(legends).to_have_text(["Time", "cached"], timeout=WAIT_MS)


async def test_a_policy_is_tried_then_applied_then_restored(opened, system):
    fill(system)
    page = await opened("policies")
    editor = page.get_by_label("Settings as JSON")
    await visible(editor)
    await editor.fill('{"rule": "nothing"}')
    await page.get_by_role("button", name="Dry run").click()
    await visible(page.get_by_role("alert"))
    await editor.fill('{"rule": "round_robin"}')
    await page.get_by_role("button", name="Dry run").click()
    await visible(page.get_by_role("cell", name='"round_robin"'))
    assert system.core.policies.default.spec == PolicySpec("marginal_cost", {})
    await page.get_by_role("button", name="Apply").click()
    await visible(page.get_by_role("button", name="Restore"))
    assert system.core.policies.default.spec.rule == "round_robin"
    await page.get_by_role("button", name="Restore").last.click()
    await visible(page.get_by_role("dialog").get_by_text('"marginal_cost"'))
    await page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    await expect(page.get_by_role("dialog")).to_have_count(0, timeout=WAIT_MS)
    assert system.core.policies.default.spec.rule == "marginal_cost"


async def test_the_limits_of_a_tenant_are_set_with_help_beside(opened, system):
    page = await opened("policies")
    await page.get_by_label("Part").select_option("limits of tenants")
    row = page.get_by_role("region", name="Fields of limits of tenants").locator("tbody tr", has_text="burst_tokens")
    await expect(row).to_contain_text(descriptions(RateLimitsConfig)["burst_tokens"], timeout=WAIT_MS)
    await page.get_by_label("Settings as JSON").fill('{"default": {"requests_per_minute": 60}}')
    await page.get_by_role("button", name="Dry run").click()
    await page.get_by_role("button", name="Apply").click()
    await visible(page.get_by_role("button", name="Restore"))
    limits = system.control.state.settings.limits.tenants
    assert limits == {"default": RateLimitsConfig(requests_per_minute=60)}


async def test_a_route_gets_a_shadow_policy_and_is_compared_with_it(opened, system):
    fill(system, requests=0)
    page = await opened("policies")
    await page.get_by_label("Part").select_option("routes")
    fields = page.get_by_role("region", name="Fields of routes").locator("tbody tr")
    await expect(fields.filter(has_text="compares them")).to_contain_text("shadow", timeout=WAIT_MS)
    await page.get_by_role("button", name="Compare").click()
    await visible(page.get_by_text("No route has shadow policies."))
    assert (await axe.Axe().run(page)).violations_count == 0
    await page.get_by_label("Settings as JSON").fill('[{"name": "default", "shadow": ["round_robin"]}]')
    await page.get_by_role("button", name="Dry run").click()
    await page.get_by_role("button", name="Apply").click()
    await visible(page.get_by_role("button", name="Restore"))
    for number in range(8):
        system.clock_s += 1.0
        system.serve(f"r{number}", 2_000)
    await page.get_by_role("button", name="Compare").click()
    totals = system.core.policies.shadows_of("default").compared(system.clock_s, 600)["round_robin"]
    assert totals.decisions == 8
    shown = page.get_by_role("region", name="Shadow policies").locator("tbody tr")
    await expect(shown).to_have_count(1, timeout=WAIT_MS)
    await expect(shown).to_contain_text(f"defaultround_robin{totals.agreed / 8:g}", timeout=WAIT_MS)


async def test_a_rule_says_how_many_decisions_would_have_gone_elsewhere(opened, system):
    fill(system)
    with system.core.what_ifs.begin(PolicySpec("random")) as what_if:
        elsewhere = sum(one.recorded != one.replayed for one in filter(None, what_if))
    assert elsewhere
    page = await opened("policies")
    await page.get_by_label("Rule").select_option("random")
    await page.get_by_role("button", name="Ask").click()
    await visible(page.get_by_text(f"{elsewhere} of 12 decisions"))
    differences = page.get_by_role("region", name="The newest differences").locator("tbody tr")
    await expect(differences).to_have_count(elsewhere, timeout=WAIT_MS)
    await page.get_by_label("Parameters of random").fill('{"x": 1}')
    await page.get_by_role("button", name="Ask").click()
    await visible(page.get_by_role("alert"))


async def test_what_hurts_comes_first_on_every_panel(opened, system):
    fill(system)
    await hurting(system)
    page = await opened()
    notice = page.get_by_role("alert", name="What hurts")
    await expect(notice.locator("div").first).to_contain_text("outage no worker ready: No", timeout=WAIT_MS)
    await expect(notice).to_contain_text("advice decode scheduling: Streams stutter.", timeout=WAIT_MS)
    await expect(notice).to_contain_text("chat: only 90 % of the streams meet their ttft", timeout=WAIT_MS)
    above = await page.evaluate("document.querySelector('main').firstElementChild.className")
    assert "hurts" in above
    await notice.get_by_role("link").first.click()
    headings = page.locator("article h3")
    await expect(headings.nth(0)).to_contain_text("outage no worker ready", timeout=WAIT_MS)
    await expect(headings.nth(1)).to_contain_text("advice decode scheduling", timeout=WAIT_MS)
    await visible(page.get_by_text("left (10.0.0.1:8000) is unhealthy: connection refused"))
    await visible(page.get_by_text("fewer streams"))
    await visible(page.get_by_role("cell", name="0.31"))


@pytest.mark.slow
async def test_a_plan_is_asked_for_and_shown(opened, system, tmp_path):
    page = await opened("planner")
    await expect(page.get_by_role("alert")).to_contain_text("set decision_log.path", timeout=WAIT_MS)
    log = tmp_path / "decisions.jsonl"
    log.write_bytes(b"".join(recorded("round_robin")[0].lines))
    system.config = msgspec.structs.replace(system.config, decision_log=DecisionLogConfig(path=str(log)))
    await visible(page.get_by_text("No plan was made"))
    await page.get_by_label("Profile of a worker").fill("b300")
    await page.get_by_label("TTFT, ms").fill("5000")
    await page.get_by_label("Share of calls").fill("0.5")
    await page.get_by_role("button", name="Plan for the last hour").click()
    await expect(page.get_by_role("alert")).to_contain_text("no profile 'b300'", timeout=WAIT_MS)
    await page.get_by_label("Profile of a worker").fill("llama-3.1-8b-a100")
    await page.get_by_role("button", name="Plan for the last hour").click()
    await visible(page.get_by_text("A plan is being made"))
    await expect(page.get_by_role("heading", name="Take 1 workers")).to_be_visible(timeout=120_000)
    await expect(page.get_by_role("region", name="Fleets").locator("tbody tr")).to_have_count(2, timeout=WAIT_MS)
    await visible(page.get_by_text("workers do not say which GPU they have"))


def _digest(token):
    import hashlib

    return hashlib.sha256(token.encode()).hexdigest()
