"""Whatever is written, the answer is settings or a ConfigError that names places; never another exception."""

import json
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.config.model import Config
from router.config.problems import ConfigError
from router.config.schema import settings as all_settings
from router.config.sources.environment import variable
from router.settings import load
from tests.support.examples import examples

PATHS = [path for path, _ in all_settings()]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def settled(values, env, file) -> None:
    try:
        assert isinstance(load(values, env, file), Config)
    except ConfigError as error:
        problems = error.problems
    else:
        return
    assert problems
    assert all(problem.place and problem.problem and problem.fix for problem in problems)


def in_file(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "w.yaml"
        file.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        settled({}, {}, file)


@settings(max_examples=examples(60), deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#%,? \n\t0.<~@\x85\u2028"), max_size=60))
@example("? [a, b]\n: 1\n")
@example("!!python/object:os.system x\n")
@example("a: !!int x\n")
@example("host: !!timestamp x\n")
@example("{[a]: 1}")
@example("? {a: 1}\n: 2\n")
@example("<<: 5\n")
@example("<<: [1]\n")
@example("--- a\n--- b\n")
@example("1: 2\nnull: 3\n")
@example("host: !!binary ###\n")
@example("x: !!set {a}\nworkers: !!omap [a: 1]\n")
def test_any_yaml_text_loads_or_names_a_place(text):
    in_file(text)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(PATHS), VALUES)
def test_any_value_of_any_setting_loads_or_names_a_place(path, value):
    tree = value
    for key in reversed(path):
        tree = {key: tree}
    in_file(json.dumps(tree))
    settled({".".join(path): value}, {}, None)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(PATHS), st.text(alphabet=st.characters(exclude_characters="\0"), max_size=30))
@example(("workers",), '[{"url": {"a": 1}}]')
@example(("port",), "9" * 5_000)
@example(("timeouts", "total_s"), "9" * 400)
@example(("policy", "params"), "[" * 50_000)
@example(("workers",), "[" * 50_000)
def test_any_text_in_any_variable_loads_or_names_a_place(path, text):
    settled({}, {variable(path): text}, None)
    settled({".".join(path): text}, {}, None)
