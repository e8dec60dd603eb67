from loadtest.peers.choices.sequence import Mix, draw


def test_a_seed_draws_the_same_and_another_something_else():
    assert draw(Mix(), 1) == draw(Mix(), 1) != draw(Mix(), 2)


def test_a_held_choice_is_released_exactly_once():
    held = set()
    for number, step in enumerate(draw(Mix(steps=400), 3)):
        assert set(step.releases) <= held
        held -= set(step.releases)
        held |= {number} if step.hold else set()
        assert len(held) <= Mix().most_held
    assert len(held) > 3


def test_conversations_grow_share_systems_and_are_otherwise_apart():
    prompts = [step.prompt for step in draw(Mix(steps=200), 4)]
    assert len(set(prompts)) == 200
    grown = sum(any(later.startswith(prompt) for later in prompts[place + 1 :]) for place, prompt in enumerate(prompts))
    assert grown > 40
    openings = [prompt.split(" ")[0] for prompt in prompts]
    shared = {opening for opening in openings if openings.count(opening) > 8}
    assert shared
