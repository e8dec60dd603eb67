from loadtest.workload.plan import Call, Plan, Session, reusable_by_call, within
from loadtest.workload.text import Text


def session(name, start_s, *calls):
    return Session(name, start_s, calls)


def test_a_turn_reuses_the_one_before_it_with_its_answer():
    first = Call(Text.of([(1, 40)]), (2, 25))
    second = Call(first.prompt.plus(first.answer, (3, 10)), (4, 5), pause_s=2.0)
    plan = Plan.of("two turns", [session("a", 0.0, first, second)], 1.0)
    assert plan.calls == 2
    # The answer's last token was never computed.
    assert [(call, held) for _, call, held in reusable_by_call(plan.sessions, 16)] == [(0, 0), (1, 64)]


def test_arrivals_order_reuse_across_sessions():
    short, long = Text.of([(1, 16)]), Text.of([(1, 64)])
    late = session("late", 0.0, Call(long, (8, 1), pause_s=10.0))
    early = session("early", 5.0, Call(short, (9, 1)))
    assert [held for *_, held in reusable_by_call([late, early], 16)] == [0, 16]
    never = session("never", 1.0, Call(long, (8, 1)))
    assert [held for *_, held in reusable_by_call([early, never], 16)] == [0, 16]


def test_of_a_session_only_what_can_fall_into_the_run_is_kept():
    calls = [Call(Text.of([(number, 16)]), (100 + number, 1), pause_s=10.0) for number in range(6)]
    whole = Session("a", -25.0, tuple(calls))
    rest = within(whole, 20.0)
    assert rest is not None
    assert (rest.id, rest.start_s) == ("a", 5.0)
    assert [(call.prompt, call.pause_s) for call in rest.calls] == [(calls[2].prompt, 0.0), (calls[3].prompt, 10.0)]
    assert within(whole, 5.0) is None and within(Session("b", -100.0, tuple(calls)), 20.0) is None
