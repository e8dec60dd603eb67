"""Orders against an embedded worker that does not wait, and against a server that stalls."""

import asyncio
import contextlib
import json
import statistics
import time
from itertools import islice

import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import SHIPPED_MODEL, WorkerSettings
from loadtest.load.arrivals import Rates
from loadtest.load.datasets import first, source
from loadtest.load.drive import LoadError, drive, wording_of
from loadtest.load.order import Dataset, Order, TrafficClass
from loadtest.load.player import Player
from loadtest.load.prompts import Prompts
from loadtest.load.records import record
from loadtest.load.seen import Kind
from loadtest.workload.errors import WorkloadError

SMALL = Dataset(input_len=64, output_len=4)


@pytest.fixture(scope="module")
def wording():
    return wording_of(None, 0)


@contextlib.asynccontextmanager
async def worker(**settings):
    async with serving(WorkerSettings(time_scale=0, kv_events=False, **settings)) as running:
        yield running.url


def order(url, **fields):
    defaults = {"model": SHIPPED_MODEL, "dataset": SMALL, "ignore_eos": True, "num_prompts": 20}
    return Order(url=url, **{**defaults, **fields})


async def played(one, wording, place=0):
    found, lags = [], []
    drawn = source(one.dataset, one.seed, wording)
    prompts, sessions = Prompts(one, wording, drawn.texts), first(drawn.sessions, one.num_prompts)
    player = Player(one, prompts, sessions, lambda answered: found.append(record(answered)), lags.append, place)
    await player.play(time.monotonic())
    return sorted(found, key=lambda each: each.intended_s), lags


async def test_an_open_loop_sends_on_schedule(wording):
    async with worker() as url:
        found, lags = await played(order(url, rates=Rates.constant(100.0)), wording)
    assert len(found) == 20 and found[-1].intended_s == pytest.approx(0.2)
    for one in found:
        assert one.outcome is Kind.COMPLETE, one.error
        assert (one.prompt_tokens, one.completion_tokens, len(one.token_s)) == (64, 4, 4)
        assert one.intended_s <= one.sent_s <= one.chunk_s <= one.token_s[0] <= one.ended_s
    assert lags


async def test_a_closed_loop_has_its_number_of_requests_at_a_time(wording):
    async with worker() as url:
        found, _ = await played(order(url, max_concurrency=3), wording)
    assert len(found) == 20 and {one.waited_s for one in found} == {0.0}
    most = max(sum(one.intended_s <= each.intended_s < one.ended_s for one in found) for each in found)
    assert most <= 3


async def test_a_closed_loops_first_prompts_are_written_before_it_begins(wording):
    one = order("http://127.0.0.1:1", max_concurrency=6, processes=2)
    written, drawn = [], source(one.dataset, one.seed, wording)
    prompts = Prompts(one, wording, drawn.texts)
    body = prompts.body
    prompts.body = lambda call, answers: written.append(call) or body(call, answers)
    Player(one, prompts, first(drawn.sessions, 20), print, print, place=1)
    assert len(written) == 3


async def test_an_open_loop_with_a_limit_counts_the_wait(wording):
    async with worker() as url:
        found, _ = await played(order(url, max_concurrency=1), wording)
        burst, _ = await played(order(url, max_concurrency=1, rates=Rates.constant(1e5)), wording)
    assert sum(one.waited_s > 0.0 for one in burst) >= 15 and not any(one.waited_s for one in found)
    assert burst[-1].ttft_s > burst[-1].waited_s > burst[0].waited_s


async def test_users_think_between_their_questions(wording):
    async with worker() as url:
        found, _ = await played(order(url, users=4, think_s=0.02), wording)
    assert len(found) == 20 and len({round(one.intended_s, 4) for one in found}) > 15


async def test_a_next_turn_has_the_real_answer_of_the_one_before(wording):
    talk = Dataset(name="generator:multi_turn:low_turns=3,high_turns=3,pause_p50_s=0.001,pause_p90_s=0.002,history_s=0")
    async with worker() as url:
        for chat, endpoint in ((False, "/v1/completions"), (True, "/v1/chat/completions")):
            one = order(url, dataset=talk, num_prompts=3, chat=chat, endpoint=endpoint)
            first, second, third = (await played(one, wording))[0]
            assert [each.turn for each in (first, second, third)] == [1, 2, 3]
            assert second.cached_tokens >= first.prompt_tokens // 16 * 16
            assert third.cached_tokens >= second.prompt_tokens // 16 * 16


async def test_a_duration_ends_the_run(wording):
    async with worker() as url:
        found, _ = await played(order(url, num_prompts=None, duration_s=0.2, rates=Rates.constant(100.0)), wording)
        closed, _ = await played(order(url, num_prompts=None, duration_s=0.2, max_concurrency=2), wording)
    assert 5 <= len(found) <= 40 and found[-1].intended_s < 0.2
    assert closed and closed[-1].intended_s < 0.2


async def test_a_refusal_is_a_record(wording):
    async with worker() as url:
        found, _ = await played(order(url, model="another", num_prompts=1), wording)
    assert (found[0].outcome, found[0].status) == (Kind.REFUSED, 404)


async def test_a_header_names_the_session(wording):
    heard = []

    async def serve(reader, writer):
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found, _ = await played(order(url, num_prompts=1, session_header="x-session-id"), wording)
    assert b"\r\nx-session-id: 0-random-0\r\n" in heard[0] and found[0].outcome is Kind.UNANSWERED


async def test_classes_are_drawn_by_weight_and_have_their_headers(wording):
    heard = []

    async def serve(reader, writer):
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    classes = (TrafficClass("chat", 9.0, {"x-class": "a"}), TrafficClass("batch", 1.0, {"x-class": "b"}))
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found, _ = await played(order(url, num_prompts=200, classes=classes, max_concurrency=8), wording)
    batch = sum(one.kind == "batch" for one in found)
    assert 8 <= batch <= 35 and {one.kind for one in found} == {"chat", "batch"}
    assert sum(b"\r\nx-class: b\r\n" in head for head in heard) == batch


async def test_a_request_without_end_is_cut(wording):
    async def serve(reader, writer):
        await reader.read()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found, _ = await played(order(url, num_prompts=1, limit_s=0.05), wording)
    assert (found[0].outcome, found[0].error) == (Kind.CUT, "cut: status 0 no end after 0.05 s")


async def test_a_stalled_server_shows_in_the_latency_from_the_intended_time_alone(wording):
    """One request at a time: sending waits for the answer before, so from sending every answer looks equally fast."""
    done = json.dumps({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}).encode()
    said = b"data: " + done + b"\n\ndata: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(said)

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(request.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                await asyncio.sleep(0.03)
                writer.write(head + said)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found, _ = await played(order(url, rates=Rates.constant(200.0), max_concurrency=1), wording)
    from_sending = [one.token_s[0] - one.sent_s for one in found]
    assert statistics.median(from_sending[-10:]) < 3 * statistics.median(from_sending[:10])
    assert found[-1].ttft_s > 0.4 and found[-1].ttft_s > 5 * found[0].ttft_s


def test_two_processes_play_one_schedule():
    found = []

    async def run():
        async with worker() as url:
            one = order(url, rates=Rates.constant(100.0), processes=2)
            await asyncio.to_thread(drive, one, lambda batch: found.extend(batch.records))

    asyncio.run(run())
    assert sorted(one.id for one in found) == sorted(f"random-{number}/1" for number in range(20))
    assert max(one.intended_s for one in found) == pytest.approx(0.2)


def test_an_order_that_cannot_be_played_says_why():
    with pytest.raises(LoadError, match="needs --dataset-path"):
        drive(order("http://127.0.0.1:1", dataset=Dataset(name="sharegpt")), lambda batch: None)


def words(dataset, wording, calls=6):
    found = source(dataset, 5, wording)
    return [found.texts[call.prompt.pieces[-1][0]] for one in islice(found.sessions, calls) for call in one.calls]


def test_share_gpt_is_the_first_question_or_every_one(tmp_path, wording):
    said = [{"from": who, "value": "some words of a talk " * 2} for who in ("human", "gpt", "human", "gpt")]
    file = tmp_path / "share.json"
    file.write_text(json.dumps([{"id": "a", "conversations": said}, {"id": "b", "conversations": said[:1]}]))
    one = next(source(Dataset(name="sharegpt", path=file), 0, wording).sessions)
    many = next(source(Dataset(name="sharegpt", path=file, multi_turn=True), 0, wording).sessions)
    assert (len(one.calls), len(many.calls)) == (1, 2)
    assert many.calls[1].prompt.tokens > many.calls[0].prompt.tokens + many.calls[0].answer[1]


def test_custom_rows_keep_their_times_where_they_have_any(tmp_path, wording):
    file = tmp_path / "custom.jsonl"
    rows = [{"prompt": f"p{n}", "output_tokens": 7, "timestamp_start_unix_ms": 5_000 - n * 500} for n in range(3)]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = source(Dataset(name="custom", path=file), 0, wording)
    assert [one.start_s for one in found.sessions] == [0.0, 0.5, 1.0]
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}')
    assert set(words(Dataset(name="custom", path=file), wording)) == {"a", "b"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("custom", "{}"), ("custom", '{"prompt": "a", "output_tokens": -1}'), ("sharegpt", "{}"), ("x", "")],
)
def test_a_wrong_file_or_name_is_refused(tmp_path, wording, name, text):
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(WorkloadError):
        source(Dataset(name=name, path=file), 0, wording)


def test_prefixes_are_shared_and_the_rest_is_not(wording):
    sessions = source(Dataset(name="prefix_repetition", num_prefixes=2, prefix_len=9, input_len=5), 0, wording).sessions
    prompts = [next(sessions).calls[0].prompt.pieces for _ in range(40)]
    assert len({prefix for prefix, _ in prompts}) == 2 and len({own for _, own in prompts}) == 40
    own, *none = (
        next(source(Dataset(name="prefix_repetition", prefix_len=0), 0, wording).sessions).calls[0].prompt.pieces
    )
    assert own[1] == 1024 and not none


def test_the_same_seed_writes_the_same_words_in_every_process():
    assert wording_of(None, 3).piece((7, 9)) == wording_of(None, 3).piece((7, 9)) != wording_of(None, 4).piece((7, 9))
