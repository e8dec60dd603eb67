"""Transfer parameters that a worker returned: what passes, and what no other worker may get."""

import pytest

from backends.vllm.handover import parameters
from backends.vllm.handover.parameters import HandoverError


@pytest.mark.parametrize("value", [None, [], "text", 1, True])
def test_parameters_that_are_no_object_are_refused(value):
    with pytest.raises(HandoverError, match="no kv_transfer_params"):
        parameters.checked_object(value)


def test_an_object_of_too_many_members_or_with_a_long_name_is_refused():
    assert parameters.checked_object({"a": [1]}) == {"a": [1]}
    with pytest.raises(HandoverError, match="more than 64 members"):
        parameters.checked_object(dict.fromkeys(map(str, range(65))))
    with pytest.raises(HandoverError, match="too long"):
        parameters.checked_object({"a" * 65: 1})


def test_a_missing_and_an_invalid_member_are_named():
    with pytest.raises(HandoverError, match="lacks port"):
        parameters.check_members({}, {"port": parameters.is_port})
    with pytest.raises(HandoverError, match="port is not valid"):
        parameters.check_members({"port": 0}, {"port": parameters.is_port})


@pytest.mark.parametrize(
    ("is_valid", "valid", "invalid"),
    [
        (
            parameters.is_host,
            ["gpu1", "gpu-1.example.org", "10.0.0.1", "fd00::1", "[fd00::1]", "localhost"],
            ["", "a b", "http://a", "a/b", "a@b", "a\n", "ä", "-a", "a" * 256, None, 1, ["a"]],
        ),
        (parameters.is_port, [1, 65_535], [0, 65_536, True]),
        (parameters.is_count, [0, 2**63 - 1], [-1, 2**63, 1.0, "1", True, None]),
        (
            parameters.is_block_ids,
            [[[1, 2]], [[1], [7, 8]], [[1], []]],
            [None, [], [[]], [1], [["1"]], [[-1]], [[True]], [[1]] * 65, {"0": [1]}],
        ),
        (parameters.is_loopback, ["localhost", "a.localhost", "127.0.0.2", "[::1]"], ["10.0.0.1", "gpu1"]),
    ],
)
def test_only_valid_values_pass(is_valid, valid, invalid):
    assert [one for one in valid if not is_valid(one)] == [one for one in invalid if is_valid(one)] == []


@pytest.mark.parametrize(
    ("label", "port"),
    [
        ("1", 1), ("65535", 65_535), ("08998", 8_998), ("0", None), ("65536", None), ("000001234567", None),
        ("+1", None), ("-1", None), ("", None), ("1e3", None), ("\u0663", None), ("9" * 5_000, None),
    ],
)  # fmt: skip
def test_a_label_gives_a_port_in_decimal_digits(label, port):
    assert parameters.labelled_port(label) == port


def test_block_ids_and_token_ids_are_bounded():
    assert not parameters.is_block_ids([[0] * (parameters.MAX_BLOCKS + 1)])
    assert parameters.is_token_ids([0, 1])
    assert not parameters.is_token_ids([])
    assert not parameters.is_token_ids([0.5])
    assert not parameters.is_token_ids([0] * (parameters.MAX_TOKEN_IDS + 1))
