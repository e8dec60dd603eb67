"""Requests that compute their whole prompt, or ask for several answers, must not make a cache view wrong."""

import httpx


def test_echoed_log_probabilities_are_not_predicted(start):
    system = start(workers=1)
    body = {"model": system.model, "prompt": "a word and another " * 40, "max_tokens": 2}
    assert httpx.post(f"{system.url}/v1/completions", json=body).status_code == 200
    system.wait_idle()
    asked = {"path": "/v1/completions", "headers": {}, "body": {**body, "prompt_logprobs": 0}}
    answer = system.admin.post("/admin/v1/explain", json=asked).json()
    assert answer["candidates"][0]["cached_tokens"] == 0
    plain = system.admin.post("/admin/v1/explain", json={**asked, "body": body}).json()
    assert plain["candidates"][0]["cached_tokens"] > 100
