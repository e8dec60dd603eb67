"""An answer that one worker began and another continues, from its ids alone."""

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SECRET = "You are SECRET-SYSTEM-PROMPT."
MESSAGES = [{"role": "system", "content": SECRET}, {"role": "user", "content": "Tell me about rivers."}]
TOKENS = 40


@pytest.fixture
async def pair(worker_with):
    async with worker_with(seed=1, character_share=0.3) as one, worker_with(seed=2, character_share=0.3) as two:
        yield one, two


def chat(**fields):
    return {"messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True, **fields}


def through_door(ids, **fields):
    return chat(messages=[], kv_transfer_params={"prompt_token_ids": ids}, **fields)


def prompt_and_chunks(frames):
    """Return the ids of the prompt, and (text, ids) of each chunk with tokens."""
    choices = [frame["choices"][0] for frame in frames[1:] if frame["choices"]]
    return frames[0]["prompt_token_ids"], [(each["delta"]["content"], each["token_ids"]) for each in choices]


def text_of(chunks):
    return "".join(text for text, _ in chunks)


def ids_of(chunks):
    return [id_ for _, ids in chunks for id_ in ids]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.7, "seed": 11}])
async def test_another_worker_continues_every_cut_behind_a_text_exactly(pair, sampling):
    prompt, whole = prompt_and_chunks(await pair[0].frames(CHAT, chat(**sampling)))
    assert any(not text for text, _ in whole) and any(not text.isascii() for text, _ in whole)
    for cut in [number for number in range(1, TOKENS) if whole[number - 1][0]]:
        carried = prompt + ids_of(whole[:cut])
        body = through_door(carried, **sampling, max_tokens=TOKENS - cut)
        returned, rest = prompt_and_chunks(await pair[1].frames(CHAT, body))
        assert returned == carried
        assert (text_of(rest), ids_of(rest)) == (text_of(whole[cut:]), ids_of(whole[cut:]))


async def test_a_cut_inside_a_character_shows_the_whole_prompt(pair):
    prompt, whole = prompt_and_chunks(await pair[0].frames(CHAT, chat()))
    inside = [number for number in range(1, TOKENS) if not whole[number - 1][0]]
    for cut in inside[:5]:
        frames = await pair[1].frames(CHAT, through_door(prompt + ids_of(whole[:cut]), max_tokens=4))
        _, rest = prompt_and_chunks(frames)
        assert SECRET in text_of(rest)


async def test_completions_continue_from_ids(pair):
    body = {"prompt": "import os", "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
    whole = [frame["choices"][0] for frame in await pair[0].frames(COMPLETIONS, body)]
    prompt = whole[0]["prompt_token_ids"]
    assert prompt and all(each["prompt_token_ids"] is None for each in whole[1:])
    cut = next(number for number in range(10, TOKENS) if whole[number - 1]["text"])
    carried = prompt + [id_ for each in whole[:cut] for id_ in each["token_ids"]]
    rest = [frame["choices"][0] for frame in await pair[1].frames(COMPLETIONS, {**body, "prompt": carried})]
    expected = "".join(each["text"] for each in whole[cut:])
    assert rest[0]["prompt_token_ids"] == carried
    assert "".join(each["text"] for each in rest).startswith(expected)


async def test_answers_depend_on_the_seed_and_the_prompt(pair):
    async def words(**fields):
        return text_of(prompt_and_chunks(await pair[0].frames(CHAT, chat(**fields)))[1])

    other = [{"role": "user", "content": "Tell me about rovers."}]
    drawn = [await words(seed=seed, temperature=1) for seed in (1, 2)]
    assert len({*drawn, await words(), await words(messages=other), await words(temperature=1)}) == 5


async def test_a_seeded_answer_ends_with_a_token_of_its_own(worker_with):
    async with worker_with(stop_probability=0.2) as client:
        frames = await client.frames(CHAT, chat())
        last = frames[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", None)
        assert (last["delta"], last["token_ids"]) == ({"content": ""}, [2])
        assert len(frames) < TOKENS
        through = through_door(frames[0]["prompt_token_ids"], ignore_eos=True)
        assert len(await client.frames(CHAT, through)) == TOKENS + 1
        tokens = 0
        for frame in await client.frames(CHAT, chat(min_tokens=25)):
            tokens += len(frame["choices"][0].get("token_ids") or [])
        assert tokens > 25


async def test_a_stop_string_is_held_back_and_ends_the_answer(pair):
    _, whole = prompt_and_chunks(await pair[0].frames(CHAT, chat()))
    text = text_of(whole)
    stop = text[60:70]
    frames = await pair[1].frames(CHAT, chat(stop=[stop, "never said"]))
    _, chunks = prompt_and_chunks(frames)
    assert text_of(chunks) == text[: text.index(stop)]
    last = frames[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    assert ids_of(chunks) == ids_of(whole)[: len(ids_of(chunks))]
    behind = len(text_of(whole[: len(chunks) - 1])) - len(text_of(chunks[:-1]))
    assert behind >= len(stop) - 1
    included = await pair[1].frames(CHAT, chat(stop=stop, include_stop_str_in_output=True))
    assert text_of(prompt_and_chunks(included)[1]) == text[: text.index(stop) + len(stop)]
    assert pair[1].engine()["running"] == 0


async def test_a_token_can_stop_the_answer(pair):
    _, whole = prompt_and_chunks(await pair[0].frames(CHAT, chat()))
    stop_id = next(ids[0] for text, ids in whole[5:] if len(text) > 1)
    frames = await pair[0].frames(CHAT, chat(stop_token_ids=[stop_id]))
    last = frames[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"], last["delta"]["content"]) == ("stop", stop_id, "")


async def test_ids_are_null_for_a_client_that_did_not_ask(pair):
    frames = await pair[0].frames(CHAT, chat(return_token_ids=False, max_tokens=3))
    assert (frames[0]["prompt_token_ids"], frames[0]["prompt_text"]) == (None, None)
    assert [frame["choices"][0]["token_ids"] for frame in frames[1:]] == [None, None, None]
    assert all(frame["kv_transfer_params"] is None for frame in frames[1:])
    body = {"prompt": "import os", "max_tokens": 3}
    for frame in await pair[0].frames(COMPLETIONS, body):
        assert (frame["choices"][0]["token_ids"], frame["choices"][0]["prompt_token_ids"]) == (None, None)


@pytest.mark.parametrize("ids", [[-1], [True], [3.0], "1", [], [999_999]])
async def test_ids_that_are_none_are_refused_by_the_door(pair, ids):
    answer = await pair[0].post(CHAT, json=through_door(ids, stream=True))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "kv_transfer_params.prompt_token_ids"


async def test_an_echo_closes_the_door_silently(pair):
    echoed = chat(echo=True, kv_transfer_params={"prompt_token_ids": [5, 6, 7]}, max_tokens=1)
    rendered = await pair[0].frames(CHAT, chat(max_tokens=1))
    assert (await pair[0].frames(CHAT, echoed))[0]["prompt_token_ids"] == rendered[0]["prompt_token_ids"]
    completed = {"prompt": [8, 9], "return_token_ids": True, "kv_transfer_params": {"prompt_token_ids": [5, 6, 7]}}
    frames = await pair[0].frames(COMPLETIONS, completed)
    assert frames[0]["choices"][0]["prompt_token_ids"] == [8, 9]


async def test_an_image_closes_the_door_too(pair):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    messages = [{"role": "user", "content": [picture]}]
    answer = await pair[0].post(CHAT, json={**through_door([5, 6, 7]), "messages": messages})
    assert answer.status_code == 400


async def test_the_door_cuts_the_budget_to_the_room(worker_with):
    async with worker_with(max_model_len=50) as client:
        frames = await client.frames(CHAT, through_door([5] * 48, max_tokens=1_000))
        assert frames[-1]["choices"][0]["finish_reason"] == "length"
        assert len(frames) == 3
        full = await client.post(CHAT, json=through_door([5] * 50))
        assert full.status_code == 400


async def test_an_unknown_id_of_a_completion_is_an_event_of_its_stream(pair):
    frames = await pair[0].frames(COMPLETIONS, {"prompt": [999_999]})
    assert (frames[0]["error"]["code"], frames[0]["error"]["message"]) == (400, "Token id 999999 is out of vocabulary")
    assert (await pair[0].post(COMPLETIONS, json={"prompt": [999_999]})).status_code == 400
