import json

import httpx
import pytest

from router.cli.main import main


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_the_log_of_a_gateway_replays_to_the_same_choices(start, monkeypatch, tmp_path, capsys, processes):
    path = tmp_path / "decisions.jsonl"
    monkeypatch.setenv("WARMROUTE_DECISION_LOG__PATH", str(path))
    monkeypatch.setenv("WARMROUTE_POLICIES", json.dumps({"spread": {"rule": "power_of_two"}}))
    routes = [{"name": "all", "split": {"default": 1, "spread": 1}}]
    monkeypatch.setenv("WARMROUTE_ROUTES", json.dumps(routes))
    system = start(workers=3, serve_flags=("--processes", str(processes)))
    for turn in range(5):
        for session in range(10):
            text = f"session {session} " + "word " * 100 * turn
            body = {"model": system.model, "messages": [{"role": "user", "content": text}], "max_tokens": 3}
            reply = httpx.post(
                f"{system.url}/v1/chat/completions", json=body, headers={"x-session-id": f"s{session}"}, timeout=30
            )
            assert reply.status_code == 200
    system.running.gateway.stop()
    files = [path] if processes == 1 else [tmp_path / f"decisions-{number}.jsonl" for number in range(processes)]
    decisions = 0
    for file in files:
        assert main(["replay", str(file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["same"] == found["decisions"]
        decisions += found["decisions"]
    assert decisions >= 50
