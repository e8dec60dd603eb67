"""Requests with fixed text and fixed times, independent of the answers, for vLLM and for the engine model.

A later turn holds an earlier question and an answer written beforehand, not the generated one. So both sides see the
same prompts. The generated tokens stay in the caches and are never requested.
"""

from dataclasses import dataclass
from random import Random

from loadtest.workload.conversations import QUESTIONS, RULES, Shape, documents, generate

ANSWER_TIME_S = 0.4
"""Time in the schedule for an answer, followed by the pause before the next question."""
EXCERPT_CHARS = (2_000, 5_000)


@dataclass(frozen=True)
class Arrival:
    """One request: its send time (seconds after the begin), its messages, and the number of tokens in its answer."""

    id: str
    at_s: float
    messages: tuple
    answer_tokens: int

    def body(self, model):
        """Return the chat completions body, without the members for streaming."""
        fixed = {"ignore_eos": True, "temperature": 0.0}
        return {"model": model, "messages": list(self.messages), "max_tokens": self.answer_tokens, **fixed}


@dataclass(frozen=True)
class Scenario:
    """Arrivals, by time. With `one_at_a_time` the times are ignored, and each request waits for the previous one."""

    arrivals: tuple
    one_at_a_time: bool = False


def one_at_a_time(conversations):
    """Return conversations whose turns are interleaved at random; together they exceed the cache."""
    shape = Shape(conversations=conversations, turns=4, answer_tokens=24, document_chars=(4_000, 18_000))
    return Scenario(_shuffled(_scheduled(generate(shape, 0), "talk", excerpts=True)), one_at_a_time=True)


def high(conversations):
    """Return long prompts with short answers and short prompts with long ones, near the limit of the GPU."""
    readers = Shape(conversations, 3, 6.0, 1.5, 16, (4_000, 14_000))
    talkers = Shape(conversations // 2, 4, 3.0, 1.0, 128, (600, 3_000))
    return _open(_scheduled(generate(readers, 0), "read") + _scheduled(generate(talkers, 1), "talk"))


def pressure(conversations):
    """Return more running requests than the cache can hold: preemption, and eviction of prefixes that return."""
    return _open(_scheduled(generate(Shape(conversations, 2, 16.0, 1.0, 320, (3_000, 9_000)), 0), "pressure"))


def _open(arrivals):
    return Scenario(tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)))


def _scheduled(conversations, prefix, excerpts=False):
    """Return every turn at its time; with `excerpts` each turn after the first contains an excerpt of a file."""
    rng = Random(0)
    arrivals = []
    for number, conversation in enumerate(conversations):
        at_s = conversation.start_s
        messages = conversation.opening()
        for index, turn in enumerate(conversation.turns):
            at_s += turn.pause_s + (ANSWER_TIME_S if index else 0.0)
            messages.append(conversation.message(index))
            if index and excerpts:
                [excerpt] = documents(rng, 1, EXCERPT_CHARS)
                messages[-1] = {"role": "user", "content": f"{excerpt}\n\n{turn.question}"}
            arrivals.append(Arrival(f"{prefix}-{number}-{index}", at_s, tuple(messages), turn.answer_tokens))
            messages.append({"role": "assistant", "content": _written_answer(number, index)})
    return arrivals


def _written_answer(number, index):
    """Return an answer that no worker generates: it begins with a digit, and the clock answers in lower-case words."""
    rule, question = RULES[(number + index) % len(RULES)], QUESTIONS[(number * 3 + index) % len(QUESTIONS)]
    return f"{index + 1}. {rule} The next thing to ask would be: {question}"


def _shuffled(arrivals):
    """Return all arrivals in random order, but each conversation's turns in their own order."""
    slots = [arrival.id.rsplit("-", 1)[0] for arrival in arrivals]
    Random(0).shuffle(slots)
    queues = {}
    for arrival in reversed(arrivals):
        queues.setdefault(arrival.id.rsplit("-", 1)[0], []).append(arrival)
    return tuple(queues[slot].pop() for slot in slots)
