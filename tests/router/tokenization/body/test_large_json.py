"""The members found step by step are those that Python's parser finds, and no step is large."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_intdigest

import router.tokenization.body.large_json as skimming
from router.errors import ErrorKind, RequestError
from router.tokenization.body.large_json import MAX_MEMBERS, STEP_BYTES, BodySurvey, LargeObjectScan

NAMES = frozenset({"a", "b", "model"})
TEXT = st.lists(st.sampled_from(["\\", '"', "[", "]", "{", "}", ",", "x", "é", "\n", '\\"', "\\\\"]), max_size=300).map(
    "".join
)
VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


def skimmed(body: bytes) -> LargeObjectScan:
    skim = LargeObjectScan(body, NAMES)
    for _ in skim.steps():
        pass
    return skim


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "model", "other", "a\\", 'b"']), VALUES), max_size=6),
    st.sampled_from(["", " ", "\n\t\r "]),
    st.booleans(),
)
def test_the_scan_agrees_with_pythons_parser(members: list[tuple[str, object]], space: str, ascii_only: bool) -> None:
    texts = [
        f"{space}{json.dumps(name)}{space}:{space}{json.dumps(value, ensure_ascii=ascii_only)}{space}"
        for name, value in members
    ]
    body = (space + "{" + ",".join(texts) + space + "}").encode()
    skim, whole = skimmed(body), json.loads(body)
    assert skim.spans.keys() == NAMES & whole.keys()
    for name, (start, end) in skim.spans.items():
        assert json.dumps(json.loads(body[start:end])) == json.dumps(whole[name])
    assert skim.others is bool(whole.keys() - NAMES)


@given(st.lists(st.sampled_from([b"[", b"{", b'"', b"\\", b'\\"', b"]", b"}", b"x", b",", b":", b" "]), max_size=60))
def test_invalid_json_is_refused_or_skipped(pieces: list[bytes]) -> None:
    kinds = []
    try:
        skimmed(b'{"a":' + b"".join(pieces))
    except RequestError as error:
        kinds.append(error.kind)
    assert kinds in ([], [ErrorKind.INVALID_JSON])


def test_small_windows_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    value = [["[", {"k]": ['\\"', "\\\\"]}], [[[[[]]]]] * 50, "]" * 200, {"x": "{" * 300}]
    body = json.dumps({"z": value, "a": value, "model": "m", "y": value}).encode()
    for step in (2, 3, 7, 64, 100):
        monkeypatch.setattr(skimming, "STEP_BYTES", step)
        monkeypatch.setattr(skimming, "_FIRST_WINDOW_BYTES", step)
        start, end = skimmed(body).spans["a"]
        assert json.loads(body[start:end]) == value


@pytest.mark.parametrize("body", [b"", b"[]", b" 5", b"null", b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16")])
def test_a_value_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        skimmed(body)
    assert caught.value.kind is ErrorKind.INVALID_BODY


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"a"', b'{"a":', b'{"a":}', b'{"a" 1}', b'{"a":[', b'{"a":"', b'{"a":"\\', b"{5:1}",
     '{"a":1}'.encode("utf-16-le")],
)  # fmt: skip
def test_a_broken_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        skimmed(body)
    assert caught.value.kind is ErrorKind.INVALID_JSON


def test_too_many_members_are_refused() -> None:
    assert skimmed(b"{" + b'"a":1,' * (MAX_MEMBERS - 1) + b'"a":1}').spans["a"]
    with pytest.raises(RequestError) as caught:
        skimmed(b"{" + b'"a":1,' * MAX_MEMBERS + b'"a":1}')
    assert caught.value.kind is ErrorKind.INVALID_BODY


SHAPES = {
    "arrays": b'{"a":[' + b"[]," * 700_000 + b"[]]}",
    "messages": b'{"a":[' + b'{"role":"user","content":"x"},' * 70_000 + b"{}]}",
    "strings": b'{"a":[' + b'"a",' * 500_000 + b'"a"]}',
    "text": b'{"a":"' + b"hello wor " * 200_000 + b'"}',
    "escapes": b'{"a":"' + b"\\n" * 1_000_000 + b'"}',
    "backslashes": b'{"a":["' + b"\\\\" * 1_000_000 + b'"]}',
    "spaces": b'{"a":' + b" " * 2_000_000 + b"[]}",
    "number": b'{"a":' + b"1" * 2_000_000 + b"}",
    "deep": b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    "nested": b'{"a":[' + b"[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]," * 50_000 + b"[]]}",
    "hovering": b'{"a":[' + (b"[" * 9 + b"]" * 9) * 110_000 + b"]}",
    "members": b"{" + b'"a":[],' * (MAX_MEMBERS - 2) + b'"a":1}',
    "open string": b'{"a":["' + b"]" * 2_000_000 + b'"]}',
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_is_small_whatever_the_shape(shape: str) -> None:
    body = SHAPES[shape]
    skim = LargeObjectScan(body, NAMES)
    steps, longest_s = skim.steps(), 0.0
    while True:
        began_s = time.thread_time()
        over = next(steps, True)
        longest_s = max(longest_s, time.thread_time() - began_s)
        if over:
            break
    assert skim.spans["a"][1] == len(body) - 1
    assert longest_s < 0.05  # ten times the measured value, for slow machines
    assert len(body) > STEP_BYTES or shape == "members"


def surveyed(body: bytes) -> BodySurvey:
    survey = BodySurvey()
    for _ in survey.steps(body):
        pass
    return survey


@given(st.binary(max_size=400), st.sampled_from([2, 3, 8, 64]))
def test_a_survey_counts_brackets_and_commas(body: bytes, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skimming, "STEP_BYTES", step)
        survey = surveyed(body)
    assert (survey.brackets, survey.commas) == (body.count(b"[") + body.count(b"{"), body.count(b","))
    assert survey.wide or (body.isascii() and b"\\u" not in body)
    assert not survey.wide or not body.isascii() or b"\\" in body
    assert survey.digest == xxh3_128_intdigest(body)
