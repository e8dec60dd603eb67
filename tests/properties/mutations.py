"""Mutations of table rows, such as an attacker or a broken peer would send."""

from hypothesis import Phase, settings
from hypothesis import strategies as st

PIECES = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\x00", b"\x0b", b"\x7f", b"\xff", b":", b";", b",", b'"', b"0",
    b"-", b"+", b"0x", b"0\r\n\r\n", b"5\r\nhello\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"chunked", b", chunked",
    b"Connection: close\r\n", b"Connection: content-length\r\n", b"Host: x\r\n", b"Expect: 100-continue\r\n",
    b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"HTTP/1.1", b"HTTP/1.0", b"ffffffffffffffff",
    b"99999999999999999999", b"\r\n ",
]  # fmt: skip

PLACE = st.integers(0, 1 << 20)
MUTATION = st.one_of(
    st.tuples(st.just("insert"), PLACE, st.sampled_from(PIECES)),
    st.tuples(st.just("replace"), PLACE, st.sampled_from(PIECES)),
    st.tuples(st.just("byte"), PLACE, st.integers(0, 255)),
    st.tuples(st.just("delete"), PLACE, st.integers(1, 12)),
    st.tuples(st.just("repeat"), PLACE, st.integers(1, 60)),
    st.tuples(st.just("swap"), PLACE, PLACE),
    st.tuples(st.just("end"), PLACE, st.none()),
)


def mutated(raw, mutations):
    for kind, place, what in mutations:
        at = place % (len(raw) + 1)
        match kind:
            case "insert":
                raw = raw[:at] + what + raw[at:]
            case "replace":
                raw = raw[:at] + what + raw[at + len(what) :]
            case "byte":
                raw = raw[:at] + bytes([what]) + raw[at + 1 :]
            case "delete":
                raw = raw[:at] + raw[at + what :]
            case "repeat":
                raw = raw[:at] + raw[at : at + what] + raw[at:]
            case "swap":
                other = what % (len(raw) + 1)
                raw = raw[: min(at, other)] + raw[max(at, other) :] + raw[min(at, other) : max(at, other)]
            case "end":
                raw = raw[:at]
    return raw


MUTATIONS = st.lists(MUTATION, max_size=4)


def budget(factor):
    """Return settings with `factor` times the examples that the profile has for an ordinary property."""
    return settings(max_examples=max(1, int(factor * settings.default.max_examples)))


def grown_budget(factor):
    """Return settings for examples of about 400 kB. A failing example is not shrunk, because that takes minutes."""
    return settings(budget(factor), phases=[Phase.explicit, Phase.reuse, Phase.generate])
