import pytest

pytestmark = pytest.mark.any_version

BLOCK = 16


def test_a_short_prompt_whose_answer_fills_blocks(talk):
    prompt = [100, 101, 102]
    answer = talk.complete(prompt, max_tokens=40, return_token_ids=True)
    generated = answer.body["choices"][0]["token_ids"]
    # the last token's own KV is never computed: 42 tokens are two full blocks
    assert talk.complete([*prompt, *generated, 7, 8, 9]).reported == 2 * BLOCK
    talk.exact(2)


def test_prompts_of_every_length_over_three_blocks_are_predicted(talk):
    prompt = [300 + number for number in range(3 * BLOCK + 1)]
    for length in range(1, len(prompt) + 1):
        talk.complete(prompt[:length], max_tokens=1)
    talk.exact(49)


def test_answers_of_every_length_are_predicted(talk):
    for length in range(1, 2 * BLOCK + 2):
        prompt = [400 + length] * 20
        answer = talk.complete(prompt, max_tokens=length, return_token_ids=True)
        talk.complete([*prompt, *answer.body["choices"][0]["token_ids"], *prompt[:2]], max_tokens=1)
    talk.exact(66)
