"""The paired bench: costs over windows together, the interval of the median, and the table."""

from pathlib import Path

import pytest

from loadtest.bench import pairs
from loadtest.bench.features import KEY_LINE, with_features
from loadtest.bench.measures.subject import Sample
from loadtest.bench.pairs import Cost, FailedRequestsError, main, per_unit, table
from loadtest.bench.proxies.entrant import Place
from router.limits.caller import Charge
from router.limits.registry import RateLimits
from router.security.keys import ApiKeys
from router.settings import load


def test_windows_are_weighted_by_their_counts():
    samples = [Sample(10.0, 300, 300.0, 0), Sample(20.0, 100, 100.0, 0)]
    assert per_unit(samples) == pytest.approx(12.5)


def test_a_failed_request_ends_the_run_with_its_reason():
    with pytest.raises(FailedRequestsError, match="status 503"):
        per_unit([Sample(10.0, 300, 300.0, 0), Sample(0.0, 0, 0.0, 1, ("status 503",))])


def test_the_table_has_a_row_per_build_and_measure():
    rows = table(
        {
            ("from source", "request-2k"): [Cost(100.0, 101.0), Cost(200.0, 202.0)],
            ("compiled", "tokens-64"): [Cost(20.0, 19.0)],
        }
    )[2:]
    assert rows == [
        "| from source | CPU per request, 2 kB body | 150.0 | 151.5 | 1.010 | 1.010 to 1.010 | 2 |",
        "| compiled | CPU per streamed token, 64 streams | 20.0 | 19.0 | 0.950 | 0.950 to 0.950 | 1 |",
    ]


def test_the_settings_with_all_features_are_valid_and_refuse_nothing(tmp_path):
    flag, file = with_features(Place(8_100, tmp_path))
    assert flag == "--config"
    config = load({}, {}, Path(file))
    assert [worker.url for worker in config.workers] == ["http://127.0.0.1:8100"]
    name, key = KEY_LINE.strip().removeprefix("authorization: ").split()
    assert (name, ApiKeys(config.auth).name_of(key.encode())) == ("Bearer", "bench")
    limits = RateLimits(config.limits).of("bench", "bench")
    assert all(isinstance(limits.admit(10_000, 5.0), Charge) for _ in range(1_000))
    assert limits.lines().count(b"x-ratelimit-") == 6


def test_something_must_be_compared(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pairs"])
    with pytest.raises(SystemExit):
        main()
    assert "give --build, --features or --sidecar" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "old"), [([], False), (["--everything-on"], True)])
def test_with_everything_on_both_environments_have_the_features(monkeypatch, flags, old):
    started = {}
    monkeypatch.setattr(pairs, "_started", lambda side, build, folder, stack: started.update({side: build.features}))
    monkeypatch.setattr(pairs, "_cost", lambda *_: Cost(1.0, 1.0))
    monkeypatch.setattr("sys.argv", ["pairs", "--build", "ours", "OLD", "NEW", "--pairs", "1", *flags])
    assert main() == 0
    assert started == {"old": old, "new": old}
