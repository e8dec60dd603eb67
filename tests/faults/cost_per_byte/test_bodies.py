"""Bounds on the cost of any request body: another client's wait, memory per byte, and memory kept afterwards."""

import itertools

import pytest

from loadtest.soak.attack import shapes
from loadtest.soak.attack.clients import attack, request
from loadtest.soak.attack.shapes import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE, TRANSCRIPTIONS

pytestmark = [pytest.mark.slow, pytest.mark.measures]
MB = 1_000_000
BODY_BYTES = 9_800_000
AT_ONCE = 2
SECONDS = 2.0
EXTRA = "/v1/extra"
WORDS = itertools.count()

ORDINARY = {
    CHAT: shapes.JSON_SHAPES,
    COMPLETIONS: ("short_strings", "token_ids"),
    MESSAGES: ("text",),
    RESPONSES: ("empty_objects",),
    EMBEDDINGS: ("token_ids",),
    TOKENIZE: ("text",),
    EXTRA: ("model",),
    TRANSCRIPTIONS: shapes.MULTIPART_SHAPES,
}
"""All shapes for a chat, and one or two for each other path; `test_every_shape_on_every_path` has the rest."""
ASKED = {CHAT: ("short_messages", "text"), COMPLETIONS: ("short_strings", "token_ids")}
"""The shapes for a model without a local tokenizer, whose prompts a worker tokenises."""


COSTLY = (
    "floats", "denormals", "long_floats", "long_integers", "deep_lists", "empty_lists", "tools_of_floats",
    "tools_of_long_integers", "small_fields_of_floats", "not_a_number", "lone_surrogates",
)  # fmt: skip
"""The shapes whose elements cost a parser most."""


def pairs(table):
    return [(path, shape) for path, names in table.items() for shape in names]


def named(data, number):
    """Return the body with a unique word, so that no cache helps. In a UTF-16 body the word has the same encoding."""
    for codec in ("ascii", "utf-16-le"):
        place = "WORDWORD".encode(codec)
        if place in data:
            return data.replace(place, f"{number:08d}".encode(codec), 1)
    return data


def maker(bench, path, shape, model, size=BODY_BYTES, chunked=False):
    """Return a function from a number to a whole request. Bodies are built once, because building is slow."""
    body = shapes.build(path, shape, size, model, "WORDWORD")

    def make(_):
        data = named(body.data, next(WORDS) % 100_000_000)
        return request(shapes.Body(path, data, body.content_type), bench.key, chunked=chunked)

    return make


def burst(bench, make, connections=AT_ONCE, seconds=SECONDS):
    return lambda: attack(bench.address, make, connections, seconds)


@pytest.mark.parametrize(("path", "shape"), pairs(ORDINARY))
def test_a_body_of_any_shape_stalls_nobody_and_takes_thrice_its_bytes(bench, models, path, shape):
    make = maker(bench, path, shape, models["local"])
    bench.row(f"{path} {shape}", burst(bench, make), BODY_BYTES * AT_ONCE)


@pytest.mark.parametrize(("path", "shape"), pairs(ASKED))
def test_a_body_whose_prompt_a_worker_tokenises_costs_no_more(bench, models, path, shape):
    make = maker(bench, path, shape, models["asked"])
    bench.row(f"{path} {shape}, /tokenize", burst(bench, make), BODY_BYTES * AT_ONCE)


@pytest.mark.parametrize("shape", ["text", "short_messages"])
def test_chunks_of_one_byte_cost_no_more_than_their_bytes_on_the_wire(bench, models, shape):
    size = 800_000
    make = maker(bench, CHAT, shape, models["local"], size, chunked=True)
    wire_bytes = len(make(0))
    bench.row(f"chat {shape} in 1-byte chunks", burst(bench, make), wire_bytes * AT_ONCE)


@pytest.mark.parametrize(
    ("size", "shape"),
    [*((260_000, shape) for shape in COSTLY[::2]), *((2_300_000, shape) for shape in COSTLY[1::2])],
)
def test_costly_elements_stall_nobody_in_bodies_that_are_decoded(bench, models, bars, shape, size):
    make = maker(bench, CHAT, shape, models["local"], size)
    spare = bars(spare_bytes=50 * MB)  # as for small bodies
    bench.row(f"chat {shape}, {size // 1000} kB", burst(bench, make, 8), size * 8, spare)


@pytest.mark.parametrize("size", [2_000, 100_000])
def test_many_small_bodies_at_once_stall_nobody(bench, models, bars, size):
    make = maker(bench, CHAT, "text", models["local"], size)
    spare = bars(spare_bytes=50 * MB)  # prompts that fit are remembered, up to residency.memo_bytes
    bench.row(f"chat text of {size} bytes, 32 at once", burst(bench, make, 32), size * 32, spare)


@pytest.mark.parametrize("shape", ["short_messages", "text", "empty_lists"])
def test_eight_bodies_of_15_mb_at_once_take_thrice_their_bytes(bench, models, shape):
    make = maker(bench, CHAT, shape, models["local"], 15 * MB)
    bench.row(f"chat {shape}, 8 x 15 MB", burst(bench, make, 8), 120 * MB)


@pytest.mark.parametrize("shape", ["empty_lists", "short_messages", "not_json", "tools"])
def test_the_largest_body_allowed_stalls_nobody(bench, models, shape):
    size = 65 * MB
    make = maker(bench, CHAT, shape, models["local"], size)
    bench.row(f"chat {shape}, 65 MB", burst(bench, make, 1), size)


@pytest.mark.timeout(240)
def test_a_hundred_bodies_of_10_mb_leave_little_behind(bench, models, bars):
    makers = [maker(bench, CHAT, shape, models["local"], 10 * MB) for shape in ("text", "short_messages", "tools")]

    def run():
        return attack(bench.address, lambda number: makers[number % 3](number), 4, 0.0, least=100)

    bench.row("100 bodies of 10 MB", run, 40 * MB, bars(left_bytes=150 * MB))


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["local", "asked"])
@pytest.mark.parametrize(
    ("path", "shape"),
    [(path, shape) for path in ORDINARY if path != TRANSCRIPTIONS for shape in shapes.JSON_SHAPES],
)
def test_every_shape_on_every_path(bench, models, path, shape, model):
    make = maker(bench, path, shape, models[model])
    bench.row(f"{path} {shape} {model}", burst(bench, make), BODY_BYTES * AT_ONCE)
