from pathlib import Path

import pytest

from loadtest.bench import pairs
from loadtest.bench.features import KEY_LINE, NAMES, Features
from loadtest.bench.measures.subject import Sample, Setting, Subject
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
            ("compiled", "first byte p50"): [Cost(0.5, 0.4)],
        }
    )[2:]
    assert rows == [
        "| from source | CPU per request, 2 kB body, us | 150.0 | 151.5 | 1.010 x | 1.010 to 1.010 | 2 |",
        "| compiled | CPU per streamed token, 64 streams, us | 20.0 | 19.0 | 0.950 x | 0.950 to 0.950 | 1 |",
        "| compiled | added time to first body byte, p50, ms | 0.50 | 0.40 | -0.100 ms | -0.100 to -0.100 | 1 |",
    ]


def test_the_first_byte_is_compared_at_the_load_of_the_slower_side(monkeypatch):
    sides = {name: Subject(name, "", 0, "", 0, capacity=rate) for name, rate in (("old", 900.0), ("new", 1_200.0))}

    def measured(kind, subject, setting):
        assert subject.capacity == 900.0
        return dict.fromkeys(kind.figures, Sample(1.0 if subject.name == "old" else 0.75, 300, 300.0, 0))

    monkeypatch.setattr(pairs, "measured", measured)
    costs = pairs.compared(sides, ("old", "new", "new", "old"), Setting(), ("first-byte",))
    assert costs == {name: Cost(1.0, 0.75) for name in ("first byte p50", "first byte p99")}
    assert costs["first byte p50"].change("first byte p50") == -0.25


def test_a_side_without_capacity_ends_the_run_with_its_name(monkeypatch):
    async def find_capacity(subject, setting):
        if subject.name == "new":
            raise ConnectionResetError("reset")
        return 900.0 if subject.name == "old" else 0.0

    monkeypatch.setattr(pairs, "find_capacity", find_capacity)
    for name, reason in (("new", "reset"), ("none", "no request was answered")):
        sides = {side: Subject(side, "", 0, "", 0) for side in ("old", name)}
        with pytest.raises(FailedRequestsError, match=f"capacity of {name}: {reason}"):
            pairs.compared(sides, ("old", name, name, "old"), Setting(), ("first-byte",))


def test_the_settings_with_all_features_are_valid_and_refuse_nothing(tmp_path):
    flag, file = Features().flags(Place(8_100, tmp_path))
    assert flag == "--config"
    config = load({}, {}, Path(file))
    assert [worker.url for worker in config.workers] == ["http://127.0.0.1:8100"]
    name, key = KEY_LINE.strip().removeprefix("authorization: ").split()
    assert (name, ApiKeys(config.auth).name_of(key.encode())) == ("Bearer", "bench")
    limits = RateLimits(config.limits).of("bench", "bench")
    assert all(isinstance(limits.admit(10_000, 5.0), Charge) for _ in range(1_000))
    assert limits.lines().count(b"x-ratelimit-") == 6


@pytest.mark.parametrize("name", NAMES)
def test_one_feature_alone_is_a_valid_setting(tmp_path, name):
    features = Features((name,))
    config = load({}, {}, Path(features.flags(Place(8_100, tmp_path))[1]))
    on = {
        "keys": bool(config.auth.api_keys and config.tenants),
        "limits": bool(config.limits.tenants),
        "aliases": bool(config.models),
        "routes": bool(config.routes),
        "log": config.decision_log.path is not None,
    }
    assert [found for found, is_on in on.items() if is_on] == [name]
    assert bool(features.lines) is on["keys"]


def test_something_must_be_compared(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pairs"])
    with pytest.raises(SystemExit):
        main()
    assert "give --build, --features or --sidecar" in capsys.readouterr().err


def test_single_features_need_an_environment(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pairs", "--build", "one", "OLD", "NEW", "--only", "log"])
    with pytest.raises(SystemExit):
        main()
    assert "--only chooses from --features" in capsys.readouterr().err


def test_a_sidecar_has_one_worker(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pairs", "--sidecar", "ENVIRONMENT", "--workers", "4"])
    with pytest.raises(SystemExit):
        main()
    assert "a sidecar has one worker" in capsys.readouterr().err


ALL = Features()


@pytest.mark.parametrize(
    ("arguments", "started"),
    [
        (["--build", "ours", "OLD", "NEW"], [(None, None)]),
        (["--build", "ours", "OLD", "NEW", "--everything-on"], [(ALL, ALL)]),
        (["--features", "NEW"], [(None, ALL)]),
        (["--features", "NEW", "--only", "log", "--only", "keys"], [(None, Features((n,))) for n in ("log", "keys")]),
    ],
)
def test_which_environments_have_which_features(monkeypatch, arguments, started):
    seen = []
    monkeypatch.setattr(pairs, "_started", lambda side, build, *_: seen.append(build.features))
    monkeypatch.setattr(pairs, "compared", lambda *_: {"request-2k": Cost(1.0, 1.0)})
    monkeypatch.setattr("sys.argv", ["pairs", "--pairs", "1", *arguments])
    assert main() == 0
    assert list(zip(seen[::2], seen[1::2], strict=True)) == started
