"""Several requests on one connection, valid and invalid ones mixed."""

import random

from tests.conformance.vectors.pieces import LAST, SMUGGLED, TE, E, H, chunk, chunked, lengthed, line

SEED = 20
MIXES = 400


def get(letter):
    return line(b"GET", letter) + H + E


SOUND = (
    lambda letter: get(letter),
    lambda letter: line(b"HEAD", letter) + H + E,
    lambda letter: lengthed(b"hello", line(b"POST", letter) + H),
    lambda letter: lengthed(b"", line(b"POST", letter) + H),
    lambda letter: lengthed(SMUGGLED, line(b"POST", letter) + H),
    lambda letter: lengthed(SMUGGLED, line(b"GET", letter) + H),
    lambda letter: chunked(b"hel", b"lo", head=line(b"POST", letter) + H),
    lambda letter: chunked(SMUGGLED, head=line(b"POST", letter) + H),
    lambda letter: line(b"POST", letter) + H + TE + E + b"3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n",
    lambda letter: E + get(letter) + E,
    lambda letter: line(b"GET", letter, b"HTTP/1.0") + H + b"Connection: keep-alive\r\n\r\n",
    lambda letter: get(letter) * 3,
)
LAST_ONES = (
    lambda letter: line(b"GET", letter) + H + b"Connection: close\r\n\r\n",
    lambda letter: line(b"GET", letter, b"HTTP/1.0") + E,
)
UNSOUND = (
    lambda letter: line(b"GET", letter) + E,
    lambda letter: line(b"GET", letter) + H + H + E,
    lambda letter: lengthed(b"hello", line(b"POST", letter) + H + b"Content-Length: 4\r\n"),
    lambda letter: lengthed(SMUGGLED, line(b"POST", letter) + H + TE),
    lambda letter: line(b"POST", letter) + H + TE + E + b"5\r\nhello" + LAST,
    lambda letter: line(b"POST", letter) + H + TE + E + b"x\r\n" + chunk(SMUGGLED) + LAST,
    lambda letter: line(b"GET", letter) + H + b"X : y\r\n\r\n",
    lambda letter: line(b"GET", letter) + H + b"X: y\r\n z\r\n\r\n",
    lambda letter: get(letter).replace(b"\r\n", b"\n"),
    lambda letter: b"x" + get(letter),
    lambda letter: b" " + get(letter),
    lambda letter: b"\n" + get(letter),
    lambda letter: b"hello" + get(letter),
    lambda letter: LAST + get(letter),
)


def vectors():
    for first in (*SOUND, *LAST_ONES):
        for second in (*SOUND[:4], *UNSOUND):
            yield "a request after another", first(b"a") + second(b"b")
    drawn = random.Random(SEED)
    kinds = SOUND * 4 + LAST_ONES + UNSOUND
    for _ in range(MIXES):
        chosen = drawn.choices(kinds, k=drawn.randint(2, 8))
        yield "requests mixed", b"".join(kind(b"%c" % (97 + place)) for place, kind in enumerate(chosen))
