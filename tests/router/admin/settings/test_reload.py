from msgspec.structs import replace

from router.config.model import TimeoutsConfig, WorkerConfig
from router.config.problems import ConfigError, Problem

C = WorkerConfig(url="http://c:1", api_key="k-5371")


async def test_a_reload_answers_with_what_it_changed(client, system):
    system.settings = replace(system.config, workers=(C,), timeouts=TimeoutsConfig(drain_s=5))
    answer = await client.post("/admin/v1/reload")
    document = answer.json()
    assert answer.headers["etag"] == system.control.state.tag
    assert (document["version"], document["dry_run"], document["conflicts"]) == (2, False, [])
    assert [one["path"] for one in document["differences"]] == ["workers[c:1]"]
    assert document["pending"] == [
        {
            "path": "timeouts.drain_s",
            "do": "restart the gateway, or let a new process take over (--takeover, SIGUSR2)",
            "now": 30.0,
            "read": 5.0,
        }
    ]
    assert "5371" not in answer.text
    assert system.fleet.get("c:1") is not None


async def test_a_reload_can_be_tried(client, system):
    system.settings = replace(system.config, workers=(C,))
    document = (await client.post("/admin/v1/reload?dry_run=true")).json()
    assert (document["version"], document["dry_run"], len(document["differences"])) == (1, True, 1)
    assert system.fleet.get("c:1") is None


async def test_settings_with_mistakes_are_refused_as_a_whole(client, system, problem):
    mistakes = [Problem("w.yaml:2:3", "unknown setting x", "remove it"), Problem("w.yaml:9:1", "no", "write yes")]
    system.settings = ConfigError(mistakes)
    detail = problem(await client.post("/admin/v1/reload"), 422)[1]
    assert detail == "w.yaml:2:3: unknown setting x; remove it\nw.yaml:9:1: no; write yes"


async def test_a_replaced_change_of_the_api_is_named(client, system):
    await client.post("/admin/v1/workers", json={"url": "http://c:1"})
    system.settings = replace(system.config, workers=(C,))
    document = (await client.post("/admin/v1/reload")).json()
    assert [one["path"] for one in document["conflicts"]] == ["workers[c:1]"]
    assert document["conflicts"][0]["file"]["api_key"] == "***"
    assert [one["path"] for one in document["differences"]] == ["workers[c:1].api_key"]
