import ast
import json
import math
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.foreign_json import json_decoder, read_json

ROOT = Path(__file__).parents[2]
MAKER = Path("backends/foreign_json.py")
FORBIDDEN = ("msgspec.json.decode", "msgspec.json.Decoder")
FLOATS = ("1e308", "5e-324", "1.7976931348623157e308", "1e999", "-1e999", "2.2250738585072011e-308", "0." + "7" * 770)


def uses(tree: ast.AST) -> list[str]:
    """Return the calls that make a decoder or decode, and imports that would hide one."""
    called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = [f"{node.module}.{alias.name}" for node in imports for alias in node.names]
    return [name for name in called if name in FORBIDDEN] + [
        name for name in imported if name in FORBIDDEN or name == "msgspec.json"
    ]


def test_no_other_module_makes_decoders():
    found = {}
    for package in ("router", "backends", "policies"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT)
            source = path.read_bytes()
            if name != MAKER and b"msgspec" in source and b"json" in source and (bad := uses(ast.parse(source))):
                found[str(name)] = bad
    assert found == {}


@pytest.mark.parametrize(
    "code", ["import msgspec\nmsgspec.json.decode(b'')", "msgspec.json.Decoder(int)", "from msgspec.json import decode"]
)
def test_the_rule_sees_each_way_to_decode(code):
    assert uses(ast.parse(code))


def both(text: str) -> tuple[float, float]:
    found, wanted = read_json(text.encode()), json.loads(text)
    assert type(found) is type(wanted)
    return found, wanted


@pytest.mark.parametrize("text", FLOATS)
def test_costly_floats_are_pythons(text):
    found, wanted = both(text)
    assert found == wanted


@given(
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?[1-9][0-9]{0,30}\.[0-9]{1,30}", fullmatch=True)
)
def test_floats_are_pythons(text):
    found, wanted = both(text)
    assert found == wanted
    assert math.copysign(1, found) == math.copysign(1, wanted)


def test_types_are_checked():
    with pytest.raises(msgspec.ValidationError):
        read_json(b'["a"]', list[int])
    assert read_json(b"[1]", list[int]) == [1]
    assert read_json(b"null", int | None) is None


def test_an_exception_of_the_reader_of_floats_ends_the_decoding():
    def refuse(text: str) -> float:
        raise ValueError(text)

    with pytest.raises(ValueError, match="1e3"):
        json_decoder(object, refuse).decode(b"[1,1e3]")


def cpu_s(text: bytes) -> float:
    """Return the least time of five decodings."""
    times = []
    for _ in range(5):
        began_s = time.thread_time()
        read_json(text)
        times.append(time.thread_time() - began_s)
    return min(times)


@pytest.mark.parametrize("text", FLOATS)
def test_a_costly_float_takes_little_more_than_a_cheap_one(text):
    """Without the hook, ``1e308`` takes 60 times as long as ``1.5`` with it. The time may grow with the digits."""
    repeats = 2_000
    cheap_s = cpu_s(b"[" + b"1.5," * repeats + b"0]")
    costly_s = cpu_s(b"[" + text.encode() + b"," + (text.encode() + b",") * (repeats - 1) + b"0]")
    assert costly_s < (5 + len(text) / 40) * cheap_s
