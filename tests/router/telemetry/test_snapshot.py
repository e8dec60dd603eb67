import msgspec
import pytest

from router.config.model import Config
from router.metrics.catalogue import CATALOGUE, Kind, Merge
from router.metrics.instruments import Labels
from router.metrics.registry import Registry
from router.telemetry.exposition import Exposition
from router.telemetry.readings import ProcessReadings
from router.telemetry.snapshot import Snapshot, Tally, lasting, merged, page

LABELS = ("/v1/x", "default", "m")


def of(name: str, *values: tuple[Labels, float]) -> Snapshot:
    return Snapshot({f"warmroute_{name}": dict(values)}, {})


@pytest.mark.parametrize(
    ("name", "told"), [("retries", 7.0), ("active_requests", 7.0), ("worker_requests", 5.0),
                       ("event_link_up", 2.0)]
)  # fmt: skip
def test_each_metric_is_merged_as_it_is_declared(name, told):
    total = merged([of(name, (("a",), 5.0)), of(name, (("a",), 2.0), (("b",), 1.0))])
    assert total.values[f"warmroute_{name}"] == {("a",): told, ("b",): 1.0}


def test_histograms_are_added_bucket_by_bucket():
    one, other = (Snapshot({}, {"warmroute_queue_seconds": {("true",): Tally([1, 2], 0.5)}}) for _ in range(2))
    total = merged([one, other])
    assert total.histograms["warmroute_queue_seconds"][("true",)] == Tally([2, 4], 1.0)
    assert one.histograms["warmroute_queue_seconds"][("true",)] == Tally([1, 2], 0.5)


def test_the_newest_exemplar_of_a_bucket_counts():
    one, other = {0: ("a", 0.1, 5.0), 1: ("b", 0.3, 9.0)}, {1: ("c", 0.4, 8.0), 2: ("d", 0.7, 1.0)}
    tallies = [Tally([1, 1, 1], 1.0, exemplars) for exemplars in (one, other)]
    total = merged(Snapshot({}, {"warmroute_queue_seconds": {("true",): tally}}) for tally in tallies)
    found = total.histograms["warmroute_queue_seconds"][("true",)].exemplars
    assert {bucket: exemplar[0] for bucket, exemplar in found.items()} == {0: "a", 1: "b", 2: "d"}


def test_only_counters_outlive_a_process():
    snapshot = of("retries", (("connect",), 2.0))
    snapshot.values |= of("active_requests", ((), 3.0)).values
    assert lasting(snapshot).values == {"warmroute_retries": {("connect",): 2.0}}


async def test_two_processes_merge_into_the_page_of_one():
    halves, alone = [Registry(), Registry()], Registry()
    for number in range(20):
        for each in (halves[number % 2], alone):
            each.counter("requests").add(1.0, (*LABELS, "200"))
            each.histogram("request_duration_seconds").observe(0.25 * number, LABELS)
            each.histogram("inter_token_latency_seconds").at(LABELS).observe_all([0.125 * number, 0.5])
    parts = [ProcessReadings(Config())]
    readings = [await Exposition(each, parts).snapshot() for each in halves]
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=Snapshot) for each in readings]
    ours = page(merged(sent))[0].decode().splitlines()
    theirs = page(await Exposition(alone, parts).snapshot())[0].decode().splitlines()
    own = ("process_", "warmroute_buffered_limit")
    differing = {line for line in set(ours) ^ set(theirs) if not line.startswith(own)}
    assert differing == {"warmroute_processes 1.0", "warmroute_processes 2.0"}


def test_counters_are_summed():
    assert {spec.merge for spec in CATALOGUE if spec.kind is not Kind.GAUGE} == {Merge.SUM}
