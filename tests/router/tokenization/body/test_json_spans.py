import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import RequestError
from router.tokenization.body.decoding import NO_SCALAR
from router.tokenization.body.fields import PROMPT_FIELDS, BodyFields
from router.tokenization.body.json_spans import OBJECTS, SMALL_FIELD_BYTES, find_spans, transfer_field

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["prompt_token_ids", "extra_args", "kv_transfer_params", "ec_transfer_params", "x"]
ARGUMENTS = st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=3), max_leaves=4)
KEYS = st.sampled_from([*BodyFields.__struct_fields__, "unknown", "prompt_token_ids"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Objects with repeated fields, escapes in names, and white space."""
    members = draw(st.lists(st.tuples(KEYS, VALUES | ARGUMENTS), max_size=8))
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    escape = draw(st.booleans())
    texts = []
    for key, value in members:
        name = json.dumps(key).replace("e", "\\u0065") if escape else json.dumps(key)
        texts.append(f"{space}{name}{space}:{space}{json.dumps(value, ensure_ascii=draw(st.booleans()))}{space}")
    return ("{" + ",".join(texts) + "}").encode()


@given(bodies())
def test_spans_agree_with_the_decoded_body(body: bytes) -> None:
    spans, whole = find_spans(body), json.loads(body)
    small = spans.small_fields()
    for name in BodyFields.__struct_fields__:
        value = whole.get(name)
        if name not in PROMPT_FIELDS:
            unread = isinstance(value, list) or (isinstance(value, dict) and name not in OBJECTS)
            read = NO_SCALAR if unread else value
            assert getattr(small, name) == (read if name in whole else getattr(BodyFields(), name))
        assert spans.filled(name) == bool(value) or value == 0
        assert spans.opening(name) == (json.dumps(value).encode()[:1] if name in whole else b"")
    fields = BodyFields(**{name: whole[name] for name in BodyFields.__struct_fields__ if name in whole})
    assert spans.transfer_field() == transfer_field(fields)


def test_long_values_are_not_read() -> None:
    long = "x" * SMALL_FIELD_BYTES
    options = find_spans(json.dumps({"vllm_xargs": {"a": long}}).encode()).small_fields()
    assert options.vllm_xargs is not None and not isinstance(options.vllm_xargs, dict)
    with pytest.raises(RequestError, match="cache_salt"):
        find_spans(json.dumps({"cache_salt": long}).encode()).small_fields()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": NaN}', b"[" * 100_000, b'{"a": "\\ud800"}'])
def test_a_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        find_spans(body)
