"""The messages of router/picker/protocol beside Envoy's own, which `make deploy-env` installs (xds-protos).

Envoy's protos bring a `google` package of their own, so they are read in the other environment.
"""

import json
import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from router.picker.conformance.cases import cases
from router.picker.conformance.fixture import CaseProfile, Effort, Fixture
from router.picker.conformance.outcome import Verdict
from router.picker.conformance.run import run_conformance
from router.picker.protocol import ext_proc_pb2, health_pb2
from router.picker.protocol.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from router.picker.protocol.names import PROCESS

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-deploy/bin/python"
STRUCT = {"key": ["10.0.0.1:8000", "10.0.0.2:8000"], "number": 1.5}
SCALARS = {
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_BYTES: b"\x00\xff",
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_INT32: 503,
    FieldDescriptor.TYPE_UINT32: 14,
}
ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
NOT_DONE_THERE = {"A11", "C26", "C27", "C28", "C29", "C31", "D36", "D37", "E54", "H74"}
"""Stickiness, other modes than full duplex, and spellings of subsets, which the small picker lacks. E54 measures."""
MESSAGES = [*ext_proc_pb2.DESCRIPTOR.message_types_by_name.values()]

pytestmark = pytest.mark.skipif(
    not PYTHON.exists() or not list(PYTHON.parents[1].glob("lib/*/site-packages/envoy/service/ext_proc")),
    reason="no xds-protos: `make deploy-env`",
)

READ = """
import json, sys
from google.protobuf.json_format import MessageToDict
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
for line in sys.stdin:
    name, wire = json.loads(line)
    message = getattr(ext_proc, name).FromString(bytes.fromhex(wire))
    again = message.SerializeToString(deterministic=True).hex()
    print(json.dumps([again, MessageToDict(message, preserving_proto_field_name=True)]))
"""
DESCRIBE = """
import json
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
service = ext_proc.DESCRIPTOR.services_by_name["ExternalProcessor"]
fields, waiting = {}, [method for one in service.methods for method in (one.input_type, one.output_type)]
while waiting:
    message = waiting.pop()
    if message.name in fields:
        continue
    fields[message.name] = {field.name: [field.number, field.type] for field in message.fields}
    waiting += [field.message_type for field in message.fields if field.message_type is not None]
print(json.dumps([f"/{service.full_name}/{service.methods[0].name}", fields]))
"""


def there(code, text=""):
    done = subprocess.run([PYTHON, "-c", code], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def filled(kind: Descriptor):
    """Return a message with a value in every field, in the last of each `oneof`."""
    message = kind._concrete_class()
    for field in kind.fields:
        fill(message, field)
    return message


def fill(message, field: FieldDescriptor):
    target, kind = getattr(message, field.name), field.message_type
    if kind is None and field.is_repeated:
        target.extend(["x-a", "x-b"])
    elif kind is None:
        setattr(message, field.name, field.enum_type.values[-1].number if field.enum_type else SCALARS[field.type])
    elif kind.GetOptions().map_entry:
        target["envoy.lb"].update(STRUCT)
    elif kind.name == "Struct":
        target.update(STRUCT)
    elif field.is_repeated:
        target.append(filled(kind))
    else:
        target.CopyFrom(filled(kind))


def test_numbers_types_and_the_path_are_envoys():
    path, theirs = there(DESCRIBE)[0]
    assert path == PROCESS
    ours = {message.name: {field.name: [field.number, field.type] for field in message.fields} for message in MESSAGES}
    ours["HttpStatus"]["code"][1] = FieldDescriptor.TYPE_ENUM  # any number: this side has no list of statuses
    assert {name: {key: theirs[name].get(key) for key in fields} for name, fields in ours.items()} == ours


def variants(kind):
    """Yield a message per member of the `oneof`, with all other fields."""
    oneof = kind.DESCRIPTOR.oneofs[0]
    for field in oneof.fields:
        message = filled(kind.DESCRIPTOR)
        fill(message, field)
        yield message


def test_envoys_protos_read_every_field_and_write_it_again():
    sent = [*variants(ProcessingRequest), *variants(ProcessingResponse)]
    lines = [json.dumps([one.DESCRIPTOR.name, one.SerializeToString().hex()]) for one in sent]
    answers = there(READ, "\n".join(lines))
    assert len(answers) == len(sent) == 13
    for message, (wire, read) in zip(sent, answers, strict=True):
        assert type(message).FromString(bytes.fromhex(wire)) == message
        assert read[message.WhichOneof(message.DESCRIPTOR.oneofs[0].name)]


@pytest.fixture
def envoys_picker():
    """Yield the address of a picker that is made of Envoy's protos alone."""
    words = [PYTHON, Path(__file__).with_name("picker_of_envoys_protos.py"), *ENDPOINTS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()
        process.wait(20)


async def test_the_conformance_suite_understands_a_picker_of_envoys_protos(envoys_picker):
    profiles = frozenset({CaseProfile.CORE, CaseProfile.STREAMING})
    effort = Effort(streams=40, resets=20, spread=30, timed_picks=5)
    fixture = Fixture(target=envoys_picker, endpoints=ENDPOINTS, profiles=profiles, effort=effort)
    wanted = {id_ for id_, _ in cases()} - NOT_DONE_THERE
    results = await run_conformance(fixture, None, wanted)
    assert [f"{one.id}: {one.detail}" for one in results if one.verdict is Verdict.FAIL] == []
    assert sum(one.verdict is Verdict.PASS for one in results) >= 40


def test_health_messages_are_those_of_grpc():
    request = health_pb2.HealthCheckRequest(service="readiness")
    assert request.SerializeToString() == b"\x0a\x09readiness"
    answers = [health_pb2.HealthCheckResponse(status=status).SerializeToString() for status in (1, 2, 3)]
    assert answers == [b"\x08\x01", b"\x08\x02", b"\x08\x03"]
