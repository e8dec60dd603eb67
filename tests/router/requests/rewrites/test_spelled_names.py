import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.requests.rewrites.json_splice import set_inner, spliced
from router.requests.rewrites.model_name import in_json


@st.composite
def spelled(draw, name):
    """Return a JSON string of `name` with some letters escaped."""
    letters = draw(st.lists(st.sampled_from(["plain", "lower", "upper"]), min_size=len(name), max_size=len(name)))
    forms = {"plain": "{0}", "lower": "\\u{1:04x}", "upper": "\\u{1:04X}"}
    return '"' + "".join(forms[form].format(c, ord(c)) for form, c in zip(letters, name, strict=True)) + '"'


def objects(inner):
    names = st.sampled_from(["model", "stream_options", "a"]).flatmap(spelled)
    member = st.tuples(names, inner).map(":".join)
    return st.lists(member, max_size=4).map(lambda members: "{" + ",".join(members) + "}")


SCALARS = st.sampled_from(["1", '"a \\"model\\":\\"chat\\""', '"\\\\u006dodel"', "[]"])
VALUE = st.recursive(spelled("chat") | SCALARS, objects, max_leaves=6)
BODIES = objects(VALUE).filter(lambda text: isinstance(json.loads(text).get("model"), str))


@given(BODIES)
def test_an_alias_is_replaced_in_the_outermost_object_alone(text):
    wanted = json.loads(text)
    sent = in_json(text.encode(), wanted["model"], "real")
    assert json.loads(sent) == {**wanted, "model": "real"}


@given(objects(VALUE))
def test_an_option_is_set_in_the_outermost_object_alone(text):
    wanted = json.loads(text)
    present = wanted.get("stream_options")
    splice = set_inner(text.encode(), "stream_options", "include_usage", b"true", present)
    if splice is not None:
        sent = json.loads(spliced(text.encode(), splice))
        assert sent == {**wanted, "stream_options": {**(present or {}), "include_usage": True}}


@pytest.mark.parametrize("name", ["mod\\u0065l", "\\u006dodel", "\\u006D\\u006F\\u0064\\u0065\\u006C"])
def test_a_nested_name_is_left_alone_beside_one_with_escapes(name):
    body = b'{"%b":"chat","messages":[],"metadata":{"model":"chat"}}' % name.encode()
    assert json.loads(in_json(body, "chat", "real")) == {
        "model": "real",
        "messages": [],
        "metadata": {"model": "chat"},
    }


@pytest.mark.parametrize("text", ["é 日 🦊", "<b>&", "it's", "\x00\x1f"])
def test_escapes_that_encoders_write_do_not_hinder(text):
    body = json.dumps({"model": "chat", "text": text}).replace("<", "\\u003c").encode()
    assert in_json(body, "chat", "real") == body.replace(b'"chat"', b'"real"')
