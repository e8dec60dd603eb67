import hashlib
import re
from importlib.resources import files

import httpx
import pytest

from router.admin.app import build_admin
from router.security.token import AdminTokens, TokenSettings

VENDOR = files("router.admin") / "console" / "vendor"


async def test_the_page_and_each_file_that_it_names_are_served_without_a_token(client):
    page = await client.get("/")
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="(console/[^"]+)"', page.text)
    assert len(named) == 4
    seen = set()
    while named:
        path = named.pop()
        answer = await client.get(f"/{path}")
        assert answer.status_code == 200, path
        kind = {"js": "text/javascript", "css": "text/css"}[path.rpartition(".")[2]]
        assert answer.headers["content-type"].startswith(kind)
        seen.add(path)
        if "/vendor/" not in path:
            imported = [f"console/{one}" for one in re.findall(r'from "\./([^"]+)"', answer.text)]
            named += [one for one in imported if one not in seen]
    assert {"console/app.js", "console/fleet.js", "console/vendor/htm-preact-3.1.1.js"} <= seen


async def test_nothing_but_this_port_may_run_or_frame_the_page(client):
    headers = (await client.get("/")).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    text = (await client.get("/")).text
    assert "<style" not in text and "onclick" not in text and not re.search(r"https?://", text)


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("10.0.0.7", 403), ("x", 403)]
)
async def test_without_tokens_the_console_is_for_this_host_alone(system, host, status):
    transport = httpx.ASGITransport(build_admin(system), client=(host, 5000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
        assert (await client.get("/")).status_code == status
        assert (await client.get("/console/app.js")).status_code == status


async def test_with_tokens_the_page_is_open_and_the_api_is_not(system):
    tokens = AdminTokens(TokenSettings("a-secret-of-some-length", None))
    transport = httpx.ASGITransport(build_admin(system, tokens), client=("10.0.0.7", 5000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/admin/v1/whoami")).status_code == 401
        answer = await client.get("/admin/v1/whoami", headers={"authorization": "Bearer a-secret-of-some-length"})
        assert answer.json()["role"] == "admin"


async def test_without_tokens_the_caller_is_admin(client):
    assert (await client.get("/admin/v1/whoami")).json() == {"name": None, "role": "admin"}


def test_vendored_files_are_the_published_ones_with_their_licences():
    listed = dict(re.findall(r"^- `([^`]+)`: `([0-9a-f]{64})`", (VENDOR / "README.md").read_text(), re.MULTILINE))
    here = {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in VENDOR.iterdir() if one.name != "README.md"
    }
    assert listed == here
    assert sum(name.endswith("LICENSE.txt") for name in here) == 3


async def test_a_row_shows_state_load_and_recent_traffic(client, system):
    system.join("http://a:1")
    for number in range(3):
        system.serve(f"r{number}", 2_000)
    (row,) = (await client.get("/admin/v1/fleet")).json()["rows"]
    assert (row["id"], row["state"], row["draining"], row["role"]) == ("a:1", "ready", False, "mixed")
    assert row["ttft_s"] == 2.0 and row["cached_share"] == 0.0
    assert row["prompts"] == "m: ids of m from a test"
    assert (row["gap_s"], row["kv_usage"]) == (None, None)


async def test_a_worker_without_a_probe_has_a_row(client, system):
    assert (await client.post("/admin/v1/workers", json={"url": "http://b:1"})).status_code == 201
    (row,) = (await client.get("/admin/v1/fleet")).json()["rows"]
    assert (row["id"], row["worker"], row["state"], row["residency"]) == ("b:1", "b:1", "starting", "unknown")
