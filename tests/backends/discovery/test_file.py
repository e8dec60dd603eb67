import asyncio
from pathlib import Path

import pytest

from backends.discovery.file import FileSource, read_workers
from backends.discovery.registration import KvEvents, Registration
from backends.discovery.report import SourceReport
from tests.support.waiting import eventually

SD = """\
- targets: ["10.0.0.5:8000", "[fd00::5]:8000"]
  labels:
    warmroute_role: prefill
    warmroute_weight: "2"
    warmroute_kv_events_port: "5557"
    warmroute_kv_replay_port: "5657"
    __scheme__: https
    __meta_rack: "7"
    zone: a
"""


def workers(tmp_path: Path, text: str) -> dict[str, Registration]:
    file = tmp_path / "workers.yaml"
    file.write_text(text)
    return dict(read_workers(file))


@pytest.mark.parametrize(
    "text",
    [
        "- http://10.0.0.5:8000\n",
        "workers:\n- url: http://10.0.0.5:8000\n",
        '["http://10.0.0.5:8000"]',
        '[{"targets": ["10.0.0.5:8000"]}]',
    ],
)
def test_a_list_is_read_as_yaml_as_json_and_in_prometheus_format(tmp_path: Path, text: str) -> None:
    assert workers(tmp_path, text) == {"10.0.0.5:8000": Registration(url="http://10.0.0.5:8000")}


def test_an_entry_has_all_fields_of_a_worker(tmp_path: Path) -> None:
    text = (
        "- {url: 'http://h:1', name: one, model: m, role: decode, weight: 2, labels: {zone: a},"
        " kv_events: {endpoint: 'tcp://h:5557'}}"
    )
    expected = Registration(
        url="http://h:1",
        name="one",
        model="m",
        role="decode",
        weight=2,
        labels={"zone": "a"},
        kv_events=KvEvents(endpoint="tcp://h:5557"),
    )
    assert workers(tmp_path, text) == {"h:1": expected}


def test_labels_of_prometheus_format_are_fields_of_each_target(tmp_path: Path) -> None:
    found = workers(tmp_path, SD)
    assert found["10.0.0.5:8000"] == Registration(
        url="https://10.0.0.5:8000",
        role="prefill",
        weight=2,
        labels={"zone": "a"},
        kv_events=KvEvents(endpoint="tcp://10.0.0.5:5557", replay_endpoint="tcp://10.0.0.5:5657"),
    )
    assert found["[fd00::5]:8000"].kv_events == KvEvents(
        endpoint="tcp://[fd00::5]:5557", replay_endpoint="tcp://[fd00::5]:5657"
    )


def test_an_empty_list_is_an_answer(tmp_path: Path) -> None:
    assert workers(tmp_path, "[]") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "neither JSON nor YAML"),
        ("", "not a list of workers"),
        ("7", "not a list of workers"),
        ("- 7", "entry 0"),
        ("- {url: 'http://h:1', wieght: 2}", "entry 0.*wieght"),
        ("- http://h:1\n- http://h:1", "h:1 is named twice"),
        ("- http://h:1/v1", "entry 0.*address of the API"),
        ("- {targets: [h]}", "entry 0.*port"),
        ("- {targets: ['h:99999']}", "from 1 to 65535"),
        ("- {targets: ['h:1'], labels: {warmroute_weight: 'x'}}", "weight is 'x'"),
        ("- {targets: ['h:1'], labels: {warmroute_kv_replay_port: '5'}}", "without kv-events-port"),
        ("- {targets: ['h:1'], labels: {__scheme__: ftp}}", "scheme 'ftp'"),
        ("[" * 1_000_000, "nested too deeply"),
        ("- " * 1_000_000, "nested too deeply"),
    ],
)
def test_a_mistake_is_named_with_its_entry(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        workers(tmp_path, text)


async def test_a_file_that_breaks_keeps_the_last_answer(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    file.write_text('["http://h:1"]')
    changes: list[int] = []
    report = SourceReport(lambda: changes.append(1), lambda: 7.0)
    task = asyncio.ensure_future(FileSource(str(file)).run(report))
    try:
        await eventually(lambda: report.answered)
        file.write_text("[")
        await eventually(lambda: report.failing_since is not None)
        assert list(report.workers) == ["h:1"] and "neither JSON nor YAML" in (report.error or "")
        file.unlink()
        await eventually(lambda: report.failures == 2)
        assert "No such file" in (report.error or "")
        file.write_text('["http://h:1", "http://h:2"]')
        await eventually(lambda: len(report.workers) == 2)
        assert report.failing_since is None and len(changes) == 2
    finally:
        task.cancel()
