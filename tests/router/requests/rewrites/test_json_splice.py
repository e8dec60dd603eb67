from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.requests.rewrites.json_splice import set_inner, spliced

OTHERS = {"model": "m", "messages": [{"role": "user", "content": 'say "stream_options": {"include_usage": 1}'}]}


def with_usage(body: bytes, present: object) -> bytes | None:
    splice = set_inner(body, "stream_options", "include_usage", b"true", present)
    return None if splice is None else spliced(body, splice)


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        (None, {"include_usage": True}),
        ({}, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"include_usage": None}, {"include_usage": True}),
        ({"include_usage": "no"}, {"include_usage": True}),
        ({"x": "} , {", "include_usage": 0}, None),
        ({"x": 1, "include_usage": 0.0, "y": "z"}, {"x": 1, "include_usage": True, "y": "z"}),
        ({"x": [1, {"y": 2}]}, {"include_usage": True, "x": [1, {"y": 2}]}),
        ({"x": {"include_usage": False}, "include_usage": False}, None),
        ("odd", None),
        ([], None),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_member_is_inserted(present, wanted, indent):
    fields = OTHERS if present is None else {**OTHERS, "stream_options": present, "last": 1}
    body = json.dumps(fields, indent=indent).encode()
    changed = with_usage(body, present)
    if wanted is None:
        assert changed is None
        return
    assert changed is not None and json.loads(changed) == {**fields, "stream_options": wanted}
    splice = set_inner(body, "stream_options", "include_usage", b"true", present)
    assert changed[: splice.start] == body[: splice.start]
    assert changed[splice.start + len(splice.text) :] == body[splice.end :]


@pytest.mark.parametrize(
    ("body", "present"),
    [
        (b'{"a":{"stream_options":null},"stream_options":{}}', {}),
        (b'{"a":{"stream_options":{"x":1}}}', None),
        (b'{"stream_options":null}', None),
        (b'{"stream_options":{},"stream_options":{}}', {}),
        (b'{"stream\\u005foptions":{}}', {}),
        (b'{"stream_options":{"include\\u005fusage":false},"b":{"include_usage":1}}', {"include_usage": False}),
        ('{"a":1}'.encode("utf-16"), None),
        ('{"a":1}'.encode("utf-16-le"), None),
        (b"[1]", None),
        (b"", None),
        (b'{"stream_options":7}', 7),
    ],
)
def test_an_uncertain_splice_is_not_made(body, present):
    assert with_usage(body, present) is None


def test_two_splices_apply_to_an_empty_object():
    assert json.loads(with_usage(b" { } ", None)) == {"stream_options": {"include_usage": True}}
    body = with_usage(b'{"vllm_xargs":{"a":1},"z":2}', None)
    splice = set_inner(body, "vllm_xargs", "kv_cache_report_mode", b'"full"', {"a": 1})
    assert json.loads(spliced(body, splice)) == {
        "stream_options": {"include_usage": True},
        "vllm_xargs": {"kv_cache_report_mode": "full", "a": 1},
        "z": 2,
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(['"stream_options":{}', "}{"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["stream_options", "include_usage", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["stream_options", "messages", "a", "b"]), json_values, max_size=4), st.booleans()
)
def test_a_splice_changes_only_its_member(fields, spaced):
    body = json.dumps(fields, indent=1 if spaced else None, ensure_ascii=not spaced).encode()
    changed = with_usage(body, fields.get("stream_options"))
    if changed is not None:
        options = fields.get("stream_options") or {}
        assert json.loads(changed) == {**fields, "stream_options": {**options, "include_usage": True}}
