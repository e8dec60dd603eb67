"""List and watch: nothing is lost, nothing is repeated without a pause, and the last list stays."""

import json

import pytest

from backends.discovery.kubernetes import api as api_module
from backends.discovery.kubernetes import reflector
from tests.backends.discovery.kubernetes.conftest import access, following, pod
from tests.support.waiting import eventually

TWO_FORMS = pytest.mark.parametrize("api", ["event", "status"], indirect=True)


def addresses(report):
    return {name.removesuffix(":8000") for name in report.workers}


async def test_pods_come_change_and_go(api):
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: addresses(report) == {"10.0.0.1"})
        api.put("pods", pod("b", "10.0.0.2"))
        await eventually(lambda: addresses(report) == {"10.0.0.1", "10.0.0.2"})
        api.put("pods", pod("b", "10.0.0.3"))
        await eventually(lambda: addresses(report) == {"10.0.0.1", "10.0.0.3"})
        api.delete("pods", "a")
        await eventually(lambda: addresses(report) == {"10.0.0.3"})
        assert len(api.asked(limit="500")) == 1


async def test_a_list_is_read_in_pages(api, monkeypatch):
    monkeypatch.setattr(reflector, "PAGE", 3)
    for number in range(8):
        api.put("pods", pod(f"p{number}", f"10.0.0.{number}"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: len(report.workers) == 8)
    assert len(api.asked(limit="3")) == 3


async def test_a_continue_token_that_has_expired_starts_the_list_again(api, monkeypatch):
    monkeypatch.setattr(reflector, "PAGE", 3)
    for number in range(8):
        api.put("pods", pod(f"p{number}", f"10.0.0.{number}"))
    api.page_expires = 2
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: len(report.workers) == 8)
        assert report.failures == 0


async def test_a_watch_that_is_cut_goes_on_from_its_version(api):
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        for number in range(2, 5):
            await eventually(lambda: api.watches == 1)
            api.cut()
            api.put("pods", pod(f"p{number}", f"10.0.0.{number}"))  # no watch hears it: the next one has to ask for it
            await eventually(lambda number=number: f"10.0.0.{number}" in addresses(report))
        assert (len(api.asked(limit="500")), report.failures) == (1, 0)


@TWO_FORMS
async def test_after_410_what_went_and_what_came_is_seen(api):
    api.put("pods", pod("a", "10.0.0.1"))
    api.put("pods", pod("b", "10.0.0.2"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: len(report.workers) == 2 and api.watches == 1)
        api.refusals = [(503, {})] * 2
        api.cut()
        api.delete("pods", "a")
        api.put("pods", pod("c", "10.0.0.3"))
        api.compact()
        await eventually(lambda: addresses(report) == {"10.0.0.2", "10.0.0.3"})
        await eventually(lambda: report.failing_since is None)


async def test_a_server_that_forgets_at_once_is_not_asked_without_a_pause(api, monkeypatch):
    monkeypatch.setattr(reflector, "FIRST_PAUSE_S", 0.2)
    api.put("pods", pod("a", "10.0.0.1"))
    api.compacted = 1 << 40
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: len(api.calls) >= 4)
        assert addresses(report) == {"10.0.0.1"}
        assert len(api.calls) <= 6


async def test_a_bookmark_only_moves_the_version(api):
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: api.watches == 1)
        api.version += 50
        api.bookmark()
        api.compacted = api.version
        api.cut()
        await eventually(lambda: api.asked(watch="1", resourceVersion=str(api.version)))
        assert (addresses(report), len(api.asked(limit="500"))) == ({"10.0.0.1"}, 1)
        assert api.asked(watch="1")[0]["allowWatchBookmarks"] == "true"
        assert 290 <= int(api.asked(watch="1")[0]["timeoutSeconds"]) <= 350


async def test_events_that_come_twice_or_too_late_change_nothing(api):
    old = api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: api.watches == 1)
        new = api.put("pods", pod("a", "10.0.0.2"))
        await eventually(lambda: addresses(report) == {"10.0.0.2"})
        api.send("MODIFIED", old)
        api.send("MODIFIED", new)
        api.send("DELETED", old)
        api.put("pods", pod("b", "10.0.0.3"))
        await eventually(lambda: "10.0.0.3" in addresses(report))
        assert addresses(report) == {"10.0.0.2", "10.0.0.3"}
        api.delete("pods", "a")
        await eventually(lambda: addresses(report) == {"10.0.0.3"})
        api.send("MODIFIED", new)
        api.put("pods", pod("c", "10.0.0.4"))
        await eventually(lambda: "10.0.0.4" in addresses(report))
        assert addresses(report) == {"10.0.0.3", "10.0.0.4"}, "a deleted pod does not return"


async def test_a_pod_that_leaves_the_selector_goes(api):
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: report.workers and api.watches == 1)
        api.put("pods", pod("a", "10.0.0.1", labels={"app": "other"}))
        await eventually(lambda: not report.workers)


@pytest.mark.parametrize("status", [403, 429, 500])
async def test_a_refusal_is_a_failure_that_keeps_the_answer_and_heals(api, status):
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: api.watches == 1)
        api.refusals = [(status, {})] * 3
        api.cut()
        await eventually(lambda: report.failing_since is not None)
        assert str(status) in report.error and addresses(report) == {"10.0.0.1"}
        await eventually(lambda: report.failing_since is None)


async def test_retry_after_is_honoured(api, monkeypatch):
    waited = []
    sleep = reflector.asyncio.sleep

    async def note(seconds):
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr(reflector.asyncio, "sleep", note)
    api.refusals = [(429, {"retry-after": "7"}), (429, {"retry-after": "9999"})]
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: report.answered)
    assert [one for one in waited if one >= 7] == [7.0, 60.0]


async def test_a_token_that_was_renewed_is_read_again(api, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    api.token = "first"
    async with following(api, access(api, token_file=str(token)), pods="app=vllm") as report:
        await eventually(lambda: api.watches == 1)
        token.write_text("second\n")
        api.token = "second"
        api.cut()
        await eventually(lambda: api.watches == 1)
        assert report.failures == 0


async def test_a_token_that_is_refused_is_a_failure(api, tmp_path):
    token = tmp_path / "token"
    token.write_text("wrong")
    api.token = "right"
    async with following(api, access(api, token_file=str(token)), pods="app=vllm") as report:
        await eventually(lambda: report.failing_since is not None)
        assert "401: Unauthorized" in report.error


async def test_a_server_that_is_away_keeps_the_list_and_heals(api):
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: api.watches == 1)
        await api.stop()
        await eventually(lambda: report.failing_since is not None)
        assert addresses(report) == {"10.0.0.1"}
        api.put("pods", pod("b", "10.0.0.2"))
        await api.start(api.port)
        await eventually(lambda: addresses(report) == {"10.0.0.1", "10.0.0.2"})


async def test_a_frozen_server_is_asked_again(api, monkeypatch):
    monkeypatch.setattr(api_module, "READ_S", 0.2)
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: api.watches == 1)
        api.thawed.clear()
        await eventually(lambda: report.failing_since is not None)
        assert addresses(report) == {"10.0.0.1"}
        api.thawed.set()
        await eventually(lambda: report.failing_since is None)


async def test_a_long_silence_lists_again(api, monkeypatch):
    """After a restore of etcd a watch from a version of the future is silent for ever."""
    monkeypatch.setattr(api_module, "READ_S", 0.1)
    monkeypatch.setattr(reflector, "SILENT_S", 0.3)
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: api.watches == 1)
        api.version = 1
        api.put("pods", pod("b", "10.0.0.2"))
        api.history.clear()
        await eventually(lambda: addresses(report) == {"10.0.0.1", "10.0.0.2"})


async def test_a_missing_kind_is_a_failure_in_words(api):
    async with following(api, service="vllm") as report:
        await eventually(lambda: report.failing_since is not None)
        assert "404 page not found" in report.error


async def test_an_answer_that_is_no_json_is_a_failure(api):
    api.objects["pods"] = {}
    api._list = lambda writer, *_: writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]")
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: report.failing_since is not None)
        assert "no JSON object" in report.error


async def test_a_line_that_is_no_event_relists_nothing_and_goes_on(api):
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(api, pods="app=vllm") as report:
        await eventually(lambda: api.watches == 1)
        api.send("ERROR", json.loads('{"code": 500, "message": "etcd is slow"}'))
        await eventually(lambda: len(api.asked(watch="1")) == 2)
        api.put("pods", pod("b", "10.0.0.2"))
        await eventually(lambda: len(report.workers) == 2)
        assert len(api.asked(limit="500")) == 1
