import pytest

pytestmark = pytest.mark.any_version

SYSTEM = "You tell stories that come in very small pieces. " * 30
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def test_chats(talk):
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(6):
        answer = talk.turn(messages, f"Chapter {turn}", max_tokens=31, **USAGE)
        assert answer.text and (answer.reported > 300) == bool(turn)
    talk.exact(6)


def test_completions(talk):
    text = SYSTEM
    for _ in range(6):
        text += talk.complete(text, max_tokens=20, **USAGE).text
    talk.exact(6)


def test_streams_and_whole_answers_share_blocks(talk):
    for number in range(6):
        talk.chat(SYSTEM, **(USAGE if number % 2 else {}))
        talk.chat(SYSTEM + str(number), **(USAGE if number % 3 else {}))
    talk.exact(12)


def test_usage_in_every_frame(talk):
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for _ in range(3):
        talk.chat(SYSTEM, **options)
        talk.complete(SYSTEM, **options)
    talk.exact(6)


def test_several_streamed_answers_are_predicted(talk):
    """A stream reports the hit of the first answer's prompt."""
    for n in (2, 4):
        talk.chat(SYSTEM + str(n), n=n, temperature=1, **USAGE)
        talk.chat(SYSTEM + str(n), n=n, temperature=1, **USAGE)
    talk.exact(4)


def test_a_stream_left_early_leaves_its_prompt(talk):
    body = {"model": talk.model, "prompt": SYSTEM, "max_tokens": 4_000, "stream": True, "ignore_eos": True}
    with talk.client.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    talk.settle()
    assert talk.complete(SYSTEM).reported > 200
    talk.exact(1)
