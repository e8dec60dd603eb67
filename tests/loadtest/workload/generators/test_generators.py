import pickle
from collections import Counter
from itertools import pairwise
from statistics import median

import pytest

from loadtest.workload.generators.registry import SHAPES, parse_generator
from tests.support.plans import reusable_tokens

WINDOW_S = 300.0


def drawn(text, seed=0, length_s=WINDOW_S, faster=1.0):
    return parse_generator(text).draw(seed, length_s, faster)


def calls_of(plan):
    return [call for session in plan.sessions for call in session.calls]


@pytest.mark.parametrize("name", SHAPES)
def test_a_seed_draws_everything(name):
    generator = pickle.loads(pickle.dumps(parse_generator(name)))
    plan = generator.draw(3, 100.0)
    assert plan == parse_generator(name).draw(3, 100.0) != generator.draw(4, 100.0)
    assert (plan.name, plan.duration_s, plan.block_tokens) == (name, 100.0, 16)


@pytest.mark.parametrize("name", SHAPES)
def test_every_plan_keeps_the_promises_of_plans(name):
    plan = drawn(name)
    starts = [session.start_s for session in plan.sessions]
    assert starts == sorted(starts) and starts[0] >= 0.0 and starts[-1] < WINDOW_S
    ids = [session.id for session in plan.sessions]
    assert len(set(ids)) == len(ids) and all(session.calls for session in plan.sessions)
    calls = calls_of(plan)
    assert {call.kind for call in calls} == set(SHAPES[name].kinds)
    answers = Counter(call.answer[0] for call in calls)
    assert max(answers.values()) == 1, "every answer is text of its own"
    for call in calls:
        assert call.prompt.tokens == sum(tokens for _, tokens in call.prompt.pieces) > 0
        assert call.answer[1] >= 1 and call.pause_s >= 0.0
        assert call.max_tokens is None or call.answer[1] <= call.max_tokens


def test_starts_can_be_limited():
    plan = drawn("multi_turn:rate_per_s=2,history_s=0,starts=7")
    assert [session.id for session in plan.sessions] == [f"chat-{number}" for number in range(7)]
    assert plan.sessions == drawn("multi_turn:rate_per_s=2,history_s=0").sessions[:7]


@pytest.mark.parametrize(
    "name",
    [name for name in SHAPES if name not in ("agents", "multi_turn", "documents_beside_chats")],
)
def test_faster_brings_the_same_sooner(name):
    slow, fast = drawn(name, length_s=60.0), drawn(name, length_s=30.0, faster=2.0)
    assert [session.calls for session in fast.sessions] == [session.calls for session in slow.sessions]
    assert [session.start_s * 2 for session in fast.sessions] == pytest.approx([one.start_s for one in slow.sessions])


@pytest.mark.parametrize("name", ["multi_turn", "documents_beside_chats"])
def test_each_turn_repeats_the_conversation_so_far(name):
    plan = drawn(name)
    for session in plan.sessions:
        for before, after in pairwise(session.calls):
            said = (*before.prompt.pieces, before.answer)
            assert after.prompt.pieces[: len(said)] == said and after.pause_s > 0.0


def test_shared_prefixes_are_groups_times_prompts():
    plan = drawn("shared_prefixes:groups=5,prompts=6,low_prefix_tokens=3000,high_prefix_tokens=3000")
    prompts = {call.prompt.pieces for call in calls_of(plan)}
    assert len(prompts) == 30 and len({prefix for prefix, _ in prompts}) == 5
    assert {prefix[1] for prefix, _ in prompts} == {3_000}


def test_conversations_are_under_way_when_the_run_begins():
    empty, running = drawn("multi_turn:history_s=0"), drawn("multi_turn")
    early = [len([one for one in plan.sessions if one.start_s < 60.0]) for plan in (empty, running)]
    assert early[1] > 2 * early[0]
    system = {session.calls[0].prompt.pieces[0] for session in running.sessions}
    assert len(system) == 4
    longest = [max(len(session.calls[0].prompt.pieces) for session in plan.sessions) for plan in (empty, running)]
    assert longest[0] == 2 and longest[1] > 10


def test_a_conversation_ends_where_its_context_would_overflow():
    plan = drawn("multi_turn:context_tokens=2000,low_turns=16")
    followed = [call for session in plan.sessions for call in session.calls[1:]]
    assert followed and max(call.prompt.tokens for call in followed) <= 2_000


def test_agents_have_the_issue_s_gaps_and_grow_to_200_000():
    plan = drawn("agents:rate_per_s=0.1,history_s=0,human_share=0", length_s=3_000.0)
    full = [session for session in plan.sessions if session.start_s < 500.0]
    gaps = sorted(call.pause_s for session in full for call in session.calls[1:])
    assert median(gaps) == pytest.approx(0.3, rel=0.15) and gaps[len(gaps) * 9 // 10] == pytest.approx(13.6, rel=0.15)
    assert all(len(session.calls) <= 100 for session in full)
    assert max(call.prompt.tokens for session in full for call in session.calls) > 190_000
    assert all(call.prompt.tokens <= 200_000 for call in calls_of(plan))
    assert min(len(session.calls) for session in full) >= 20


def test_people_come_back_to_agents_after_minutes():
    plan = drawn("agents:rate_per_s=0.5,history_s=0,human_share=1", length_s=1_200.0)
    gaps = [call.pause_s for session in plan.sessions if session.start_s < 300.0 for call in session.calls[1:4]]
    assert 60.0 < median(gaps) < 110.0


def test_rag_shares_the_beginning_only():
    plan = drawn("rag:documents=20,skew=1")
    prompts = [call.prompt.pieces for call in calls_of(plan)]
    first = Counter(pieces[1] for pieces in prompts)
    assert first.most_common(1)[0][1] > 3 * first.most_common(20)[-1][1], "the popular stand first more often"
    assert all(len(set(pieces)) == len(pieces) and 3 <= len(pieces) - 2 <= 6 for pieces in prompts)
    assert {call.max_tokens for call in calls_of(plan)} == {512}


def test_documents_are_long_and_few_beside_chats():
    plan = drawn("documents_beside_chats", length_s=1_000.0)
    firsts = [session.calls[0] for session in plan.sessions]
    uploads = [call for call in firsts if call.kind == "upload"]
    assert 0.03 < len(uploads) / len(firsts) < 0.13
    assert min(call.prompt.tokens for call in uploads) > 20_000
    assert max(call.prompt.tokens for call in firsts if call.kind == "chat") <= 32_000
    documents = Counter(call.prompt.pieces[1] for call in uploads)
    assert max(documents.values()) == 1


def test_one_prompt_is_hot():
    systems = Counter(call.prompt.pieces[0] for call in calls_of(drawn("hot_prompt")))
    (_, hot), (_, next_) = systems.most_common(2)
    assert hot / systems.total() == pytest.approx(0.7, abs=0.03) and next_ < hot / 50


def test_nothing_is_reused():
    assert reusable_tokens(drawn("no_reuse")) == 0


def test_siblings_come_at_once():
    plan = drawn("sibling_bursts:low_siblings=5,high_siblings=5")
    groups = Counter((session.start_s, session.calls[0].prompt) for session in plan.sessions)
    assert set(groups.values()) == {5}
    spread = drawn("sibling_bursts:spread_s=2")
    assert len({session.start_s for session in spread.sessions}) == len(spread.sessions)


def test_bursts_can_be_had_of_any():
    calm, bursty = drawn("no_reuse", length_s=2_000.0), drawn("no_reuse:burst=8,burst_share=0.1", length_s=2_000.0)
    peak = [max(Counter(int(one.start_s / 5) for one in plan.sessions).values()) for plan in (calm, bursty)]
    assert peak[1] > 2 * peak[0]
    assert bursty.calls == pytest.approx(calm.calls, rel=0.35)
