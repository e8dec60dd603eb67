import pytest
from tokenizers import Tokenizer

from backends.simulated.settings import shipped_model_dir
from loadtest.workload.groups import GroupShape, cutter, generate_groups

SMALL = GroupShape(groups=3, conversations=9, turns=3, system_tokens=600, opening_tokens=50, question_tokens=30)


@pytest.fixture(scope="module")
def cut():
    return cutter(shipped_model_dir())


@pytest.fixture(scope="module")
def count():
    tokenizer = Tokenizer.from_file(str(shipped_model_dir() / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_equal_seeds_give_equal_conversations(cut):
    assert generate_groups(SMALL, 1, cut) == generate_groups(SMALL, 1, cut)
    assert generate_groups(SMALL, 1, cut) != generate_groups(SMALL, 2, cut)


def test_a_group_shares_its_system_prompt_and_nothing_else(cut):
    conversations = generate_groups(SMALL, 0, cut)
    assert len(conversations) == 9
    assert 1 < len({conversation.system for conversation in conversations}) <= 3
    assert len({conversation.message(0)["content"] for conversation in conversations}) == 9
    starts = [conversation.start_s for conversation in conversations]
    assert starts == sorted(starts)


def test_parts_are_as_long_as_asked_in_the_models_own_tokens(cut, count):
    for conversation in generate_groups(SMALL, 0, cut):
        assert abs(count(conversation.system) - 600) <= 2
        assert [turn.answer_tokens for turn in conversation.turns] == [48] * 3
        assert 50 <= count(conversation.document) <= 60
        assert all(30 <= count(turn.question) <= 60 for turn in conversation.turns[1:])


def test_a_text_shorter_than_the_cut_stays_whole(cut):
    assert cut("def f(): pass", 500) == "def f(): pass"
    assert "def f(): pass".startswith(cut("def f(): pass", 2))


def test_requests_are_counted():
    assert GroupShape().requests == 192
