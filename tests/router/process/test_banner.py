import json
import logging
import shlex

import pytest

from router.config.model import AuthConfig, Config, TlsConfig
from router.process import banner
from router.process.banner import NO_WORKERS, Readiness, announce, command, sentence


def readiness(workers=4, ready=4, models=("m",), views=None, settled=True, **prompts):
    return Readiness(workers, ready, models, "marginal_cost", views or {"exact": ready}, settled, **prompts)


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (readiness(), "4 workers ready, 1 model, policy marginal_cost, exact views"),
        (readiness(1, 1), "1 worker ready, 1 model, policy marginal_cost, exact views"),
        (readiness(4, 1), "1 of 4 workers ready, 1 model, policy marginal_cost, exact views"),
        (
            readiness(models=("m", "n"), views={"exact": 3, "approximate": 1}),
            "4 workers ready, 2 models, policy marginal_cost, 1 approximate, 3 exact views",
        ),
        (
            readiness(prompts={"m": "rendered locally from /models/m"}),
            "4 workers ready, 1 model, policy marginal_cost, exact views, prompts tokenised here",
        ),
        (
            readiness(prompts={"m": "text only: no files"}),
            "4 workers ready, 1 model, policy marginal_cost, exact views, prompts of m: text only: no files",
        ),
        (
            readiness(prompts={"m": "worker's /tokenize (offline)"}, slow=("m",)),
            "4 workers ready, 1 model, policy marginal_cost, exact views, "
            "prompts of m by worker's /tokenize (offline): "
            "47 ms instead of 8.6 for a prompt of 8,000 tokens (`warmroute check` says how to mend it)",
        ),
    ],
)
def test_the_line_counts_workers_models_and_views(now, line):
    assert sentence(now) == line


@pytest.mark.parametrize(
    ("address", "config", "words"),
    [
        ("0.0.0.0:8000", Config(), ["http://127.0.0.1:8000/v1/chat/completions"]),
        ("[::]:8000", Config(), ["http://[::1]:8000/v1/chat/completions"]),
        ("10.0.0.1:80", Config(tls=TlsConfig(cert_file="c")), ["https://10.0.0.1:80/v1/chat/completions"]),
        ("/run/w.sock", Config(), ["--unix-socket", "/run/w.sock", "http://localhost/v1/chat/completions"]),
        ("a:1", Config(auth=AuthConfig(api_keys_file="k")), ["Authorization: Bearer KEY"]),
    ],
)
def test_the_request_to_try_fits_the_settings(address, config, words):
    found = shlex.split(command(address, config, ("it's a model",)))
    assert set(words) <= set(found)
    assert json.loads(found[-1])["model"] == "it's a model"


async def test_the_line_waits_for_a_ready_worker_and_its_view(monkeypatch, caplog):
    monkeypatch.setattr(banner, "POLL_S", 0.0)
    caplog.set_level(logging.INFO, "warmroute.process")
    moments = [readiness(ready=0), readiness(ready=0), readiness(ready=2, settled=False), readiness(), readiness()]
    await announce(lambda: moments.pop(0) if len(moments) > 1 else moments[0], "a:1", Config())
    (record,) = caplog.records
    assert (record.message, record.workers_ready, record.views) == ("ready", 4, {"exact": 4})
    assert getattr(record, "try").startswith("curl http://a:1/")


async def test_a_view_without_a_verdict_does_not_hold_the_line_back_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(banner, "POLL_S", 0.0)
    monkeypatch.setattr(banner, "VIEWS_WAIT_S", 0.0)
    caplog.set_level(logging.INFO, "warmroute.process")
    await announce(lambda: readiness(views={"unknown": 4}, settled=False), "a:1", Config())
    assert caplog.records[0].views == {"unknown": 4}


async def test_a_start_without_workers_warns(monkeypatch, caplog):
    monkeypatch.setattr(banner, "POLL_S", 0.0)
    caplog.set_level(logging.INFO, "warmroute.process")
    moments = [readiness(0, 0), readiness(0, 0), readiness(1, 1)]
    await announce(lambda: moments.pop(0) if len(moments) > 1 else moments[0], "a:1", Config())
    assert [record.message for record in caplog.records] == [NO_WORKERS, "ready"]
    assert caplog.records[0].levelname == "WARNING"
