import pytest

from router.settings import load

MISTAKES = [
    ("models: {a: {aliases: [b]}, b: {}}", ["'b' is a model itself"]),
    ("models: {a: {aliases: [a]}}", ["'a' is a model itself"]),
    ("models: {a: {aliases: [x]}, b: {aliases: [x]}}", ["'x' is an alias of a and of b"]),
    ("models: {a: {aliases: ['']}}", ["an alias is empty"]),
    ("models: {a: {default: true}, b: {default: true}}", ["models.b.default is true, and so is models.a.default"]),
    ("models: {a: {aliases: [x], fallback: b}, b: {fallback: x}}", ["'x' is an alias of a"]),
    (
        "models: {a: {on_request: ['', a, 'x*y']}}",
        [
            "'' is neither a name nor the start of one",
            "'a' is the model itself",
            "'x*y' is neither a name nor the start of one",
        ],
    ),
    ("models: {a: {on_request: [x-*]}, b: {on_request: [x-*]}}", ["'x-*' is resolved by a, and by b"]),
    ("models: {a: {aliases: [x], on_request: [x]}}", ["'x' is an alias of a"]),
    ("models: {a: {fallback: a}}", ["fallbacks lead in a circle: a -> a"]),
    (
        "models: {a: {fallback: b}, b: {fallback: a}}",
        ["fallbacks lead in a circle: a -> b -> a", "fallbacks lead in a circle: b -> a -> b"],
    ),
    ("models: {a: {alias: x}}", ["unknown"]),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_in_models_names_place_and_fix(write, problems, text, said):
    found = problems(file=write("w.yaml", text))
    assert len(found) == len(said), found
    for problem, part in zip(found, said, strict=True):
        assert part in str(problem)


def test_a_fallback_may_be_a_model_without_settings(write):
    config = load({}, {}, write("w.yaml", "models: {a: {fallback: b, aliases: [x, y], default: true}}"))
    assert (config.models["a"].fallback, config.models["a"].aliases) == ("b", ("x", "y"))
