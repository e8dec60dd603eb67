from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from backends.discovery.file import FileSource, read_workers
from backends.discovery.llmd_endpoints import MOST_BYTES, ROLES
from backends.discovery.registration import KvEvents, Registration
from backends.discovery.report import SourceReport
from tests.support.waiting import eventually

FILE = """\
endpoints:
- name: vllm-0
  address: "10.0.0.1"
  port: "8000"
- name: vllm-1
  namespace: lab
  address: 10.0.0.2
  port: "8001"
  labels:
    llm-d.ai/role: decode
    zone: a
    warmroute.io/kv-events-port: "5557"
    warmroute.io/weight: "2"
"""


def workers(tmp_path: Path, text: str) -> dict[str, Registration]:
    file = tmp_path / "endpoints.yaml"
    file.write_text(text)
    return dict(read_workers(file))


def endpoint(rest: str) -> str:
    return f"endpoints: [{{name: a, address: 10.0.0.1, port: '8000', {rest}}}]"


def test_an_entry_is_a_worker_with_the_labels_of_its_pod(tmp_path: Path) -> None:
    assert workers(tmp_path, FILE) == {
        "10.0.0.1:8000": Registration(url="http://10.0.0.1:8000", name="vllm-0"),
        "10.0.0.2:8001": Registration(
            url="http://10.0.0.2:8001",
            name="vllm-1",
            role="decode",
            weight=2,
            labels={"zone": "a"},
            kv_events=KvEvents(endpoint="tcp://10.0.0.2:5557"),
        ),
    }


def test_json_is_read_too_and_an_empty_list_is_an_answer(tmp_path: Path) -> None:
    text = '{"endpoints": [{"name": "a", "address": "10.0.0.1", "port": "1"}]}'
    assert list(workers(tmp_path, text)) == ["10.0.0.1:1"]
    assert workers(tmp_path, "endpoints: []") == {}


@pytest.mark.parametrize(("label", "role"), ROLES.items())
def test_the_label_of_llmd_gives_the_role(tmp_path: Path, label: str, role: str) -> None:
    (worker,) = workers(tmp_path, endpoint(f"labels: {{llm-d.ai/role: {label}}}")).values()
    assert worker.role == role and worker.labels == {}


def test_our_own_label_comes_before_that_of_llmd(tmp_path: Path) -> None:
    (worker,) = workers(tmp_path, endpoint("labels: {llm-d.ai/role: both, warmroute.io/role: prefill}")).values()
    assert worker.role == "prefill"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("endpoints: 7", "not an endpoints file"),
        ("{endpoints: [], workers: []}", "list `endpoints` alone"),
        ("endpoints: [7]", "endpoint 0: Expected `object`"),
        ("endpoints: [{name: a, port: '1'}]", "endpoint 0.*`address`"),
        ("endpoints: [{name: a, address: 10.0.0.1, port: 8000}]", "endpoint 0: Expected `str`, got `int` .*port"),
        ("endpoints: [{name: a, address: 10.0.0.1, port: '0'}]", "endpoint 0: port is 0; .* from 1 to 65535"),
        ("endpoints: [{name: a, address: host, port: '1'}]", "endpoint 0: address is 'host'; write an IPv4 address"),
        ("endpoints: [{name: a, address: 'fd00::1', port: '1'}]", "write an IPv4 address"),
        (endpoint("metricsHost: 10.0.0.1:9000"), "endpoint 0.*metricsHost"),
        (endpoint("labels: {llm-d.ai/role: encode}"), "llm-d.ai/role is 'encode'; write one of prefill, decode"),
        (endpoint("labels: {warmroute.io/weight: x}"), "endpoint 0: weight is 'x'"),
        (endpoint("labels: {warmroute.io/scheme: ftp}"), "scheme 'ftp'"),
        ("endpoints: [" + "{name: a, address: 10.0.0.1, port: '1'}," * 2 + "]", "endpoint 1: default/a is named twice"),
        (endpoint("}, {name: b, address: 10.0.0.1, port: '8000'"), "10.0.0.1:8000 is named twice"),
    ],
)
def test_a_mistake_is_named_with_its_entry(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        workers(tmp_path, text)


def test_a_file_beyond_the_limit_of_llmd_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"more than {MOST_BYTES} bytes, the most of an endpoints file"):
        workers(tmp_path, endpoint("labels: {}") + " " * MOST_BYTES)


async def test_a_file_that_is_replaced_as_a_whole_is_followed(tmp_path: Path) -> None:
    file, other = tmp_path / "endpoints.yaml", tmp_path / "other"
    file.write_text(endpoint("labels: {}"))
    report = SourceReport(lambda: None, lambda: 7.0)
    task = asyncio.ensure_future(FileSource(str(file)).run(report))
    try:
        await eventually(lambda: list(report.workers) == ["10.0.0.1:8000"])
        other.write_text(FILE)
        os.replace(other, file)
        await eventually(lambda: list(report.workers) == ["10.0.0.1:8000", "10.0.0.2:8001"])
    finally:
        task.cancel()
