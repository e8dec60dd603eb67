from tests.support.answers import STREAM_HEAD, answer_json, chunk, event
from tests.support.raw_client import PLAIN, post
from tests.support.waiting import eventually


async def test_bytes_of_a_running_stream_are_progress(rig):
    async def quiet_after_two(script):
        await script.say_apart(STREAM_HEAD + chunk(event("a")), chunk(event("b")))
        await script.gone()

    async def answer(script):
        await answer_json(script, b"200 OK", b"{}")

    gate = await rig(quiet_after_two, answer)
    streaming, idle = gate.fleet.endpoints
    client = await gate.send(post())
    await client.reader.readuntil(b'"b"')
    now_s = gate.loop.time()
    first = gate.fleet.evidence(streaming, now_s).progress_s
    assert now_s - 5.0 < first <= now_s
    assert idle.evidence.progress_s == float("-inf")
    later_s = now_s + 60.0
    assert gate.fleet.evidence(streaming, later_s).progress_s == first  # silence adds nothing


async def test_an_answer_in_one_piece_is_progress_at_its_end(rig):
    async def answer(script):
        await answer_json(script, b"200 OK", b'{"choices":[]}')

    gate = await rig(answer)
    (worker,) = gate.fleet.endpoints
    before_s = gate.loop.time()
    assert (await gate.ask(post(body=PLAIN))).status == 200
    await eventually(lambda: gate.idle)
    assert worker.evidence.progress_s >= before_s
