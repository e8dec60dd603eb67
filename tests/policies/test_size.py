"""The default rule stays small: the lines of the modules that it uses and no other rule or wrapper does."""

import ast
from importlib.resources import files

from policies.registry import BUILT_IN
from policies.wrappers.hold import AdmissionHold
from policies.wrappers.prefill_lanes import PrefillLanes

MOST_LINES = 600
MOST_LINES_OF_THE_RULE = 150


def source(module):
    package, _, stem = module.rpartition(".")
    folder = files(package) / stem
    return (folder / "__init__.py" if folder.is_dir() else files(package) / f"{stem}.py").read_text()


def used(module, found):
    found.add(module)
    for node in ast.walk(ast.parse(source(module))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("policies.") and node.module not in found:
            used(node.module, found)
    return found


def test_the_default_rule_and_what_only_it_uses_are_small():
    default = BUILT_IN["marginal_cost"]
    others = [rule for rule in BUILT_IN.values() if rule is not default]
    shared = set().union(*[used(kind.__module__, set()) for kind in (*others, AdmissionHold, PrefillLanes)])
    own = used(default.__module__, set()) - shared
    lines = {module: len(source(module).splitlines()) for module in own}
    assert "policies.marginal_cost.hot_prefix" in lines and "policies.view" not in lines
    assert sum(lines.values()) <= MOST_LINES, lines
    assert lines[default.__module__] < MOST_LINES_OF_THE_RULE
