"""Prove of a chat template that what it makes of a message depends on that message and the first one alone.

The proof reads the template's syntax tree and allows little. There is one loop over all messages, at the top level of
the template, and the text before and after it and in it uses no message but its own and the first one. Jinja gives each
pass of a loop variables of its own, and the sandbox lets no value change, so nothing else leads from one pass to
another. The text of a longer conversation then begins with the text of the shorter one, up to the end of the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.meta import find_undeclared_variables

_STATEFUL = frozenset({"cycler", "joiner", "lipsum", "namespace", "self", "strftime_now"})
"""Names of values that change, or differ between two renderings."""
_USED_UP = frozenset(
    {"batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique"}
)
"""Filters whose result can be read once only."""
_STATEMENTS = (
    nodes.Assign, nodes.AssignBlock, nodes.CallBlock, nodes.Continue, nodes.FilterBlock, nodes.For, nodes.If,
    nodes.Macro, nodes.Output,
)  # fmt: skip
_FIRST = {"index0": 0, "index": 1}
"""What a loop's progress is in its first pass."""


def part_with_turns(tree: nodes.Template) -> nodes.Template | None:
    """Return the template up to the end of its loop over the messages, which is a template too; None without proof.

    The result shares the nodes of `tree`.
    """
    names = _names_of_messages(tree)
    loops = [node for node in tree.body if isinstance(node, nodes.For) and _is_of(node.iter, names)]
    if len(loops) != 1 or not all(map(_keeps_no_state, tree.body)):
        return None
    loop = loops[0]
    if loop.recursive or loop.test is not None or loop.else_:
        return None
    if not isinstance(loop.target, nodes.Name) or loop.target.name in names:
        return None
    place = tree.body.index(loop)
    around = [*tree.body[:place], *tree.body[place + 1 :], *loop.body]
    if not _use_the_first_message_only(around, names) or not _knows_only_the_first_pass(loop):
        return None
    part = nodes.Template(tree.body[: place + 1], lineno=1, environment=tree.environment)
    # A name that is set behind the loop is undefined in it, and in the part it would be what the request says.
    behind = {name for node in tree.body[place + 1 :] for name in _names_set(node)}
    return None if behind & find_undeclared_variables(part) else part


def _names_set(node: nodes.Node) -> Iterator[str]:
    yield from (macro.name for macro in _with_all(node, nodes.Macro))
    yield from (name.name for name in _with_all(node, nodes.Name) if name.ctx == "store")


def _names_of_messages(tree: nodes.Template) -> frozenset[str]:
    """Return ``messages``, and the variables that the template sets to it first."""
    names = {"messages"}
    for node in tree.body:
        if isinstance(node, nodes.For):
            break
        if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name) and _is_of(node.node, names):
            names.add(node.target.name)
    return frozenset(names)


def _is_of(node: nodes.Node, names: Collection[str]) -> bool:
    return isinstance(node, nodes.Name) and node.name in names


def _is_number(node: nodes.Node, number: int) -> bool:
    return isinstance(node, nodes.Const) and type(node.value) is int and node.value == number


def _keeps_no_state(node: nodes.Node) -> bool:
    """Return whether a node and all within keep no state, are always the same, and come from no other template."""
    if isinstance(node, nodes.Stmt) and not isinstance(node, _STATEMENTS):
        return False
    if isinstance(node, nodes.Name) and node.name in _STATEFUL:
        return False
    if isinstance(node, nodes.Filter) and node.name == "random":
        return False
    if isinstance(node, nodes.Const) and node.value == "random":  # map('random')
        return False
    if isinstance(node, (nodes.NSRef, nodes.ContextReference, nodes.DerivedContextReference)):
        return False
    if isinstance(node, nodes.Assign) and _is_used_up(node.node):
        return False
    if isinstance(node, (nodes.Macro, nodes.CallBlock)) and any(map(_is_used_up, node.defaults)):
        return False
    return all(map(_keeps_no_state, node.iter_child_nodes()))


def _is_used_up(node: nodes.Node) -> bool:
    """Return whether a value may hold something that can be read once only."""
    found = [node] if isinstance(node, nodes.Filter) else []
    return any(one.name in _USED_UP for one in [*found, *node.find_all(nodes.Filter)])


def _use_the_first_message_only(around: list[nodes.Node], names: frozenset[str]) -> bool:
    """Return whether the template names all messages only to copy them, and otherwise as ``messages[0]``."""
    uses = [name for node in around for name in _with_all(node, nodes.Name) if _is_of(name, names)]
    copies = [
        node for node in around
        if isinstance(node, nodes.Assign) and _is_of(node.target, names) and _is_of(node.node, names)
    ]  # fmt: skip
    firsts = [
        item for node in around for item in _with_all(node, nodes.Getitem)
        if _is_of(item.node, names) and _is_number(item.arg, 0)
    ]  # fmt: skip
    macros = [macro for node in around for macro in _with_all(node, (nodes.Macro, nodes.CallBlock))]
    hidden = any(_is_of(name, names) for macro in macros for name in macro.args)
    return not hidden and len(uses) == len(firsts) + 2 * len(copies)


def _knows_only_the_first_pass(loop: nodes.For) -> bool:
    uses = sum(1 for node in _own(loop.body) if _is_of(node, ("loop",)))
    return uses == sum(map(_asks_for_first_pass, _own(loop.body)))


def _asks_for_first_pass(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return _is_of(node.node, ("loop",)) and node.attr == "first"
    if not isinstance(node, nodes.Compare) or len(node.ops) != 1 or node.ops[0].op not in ("eq", "ne"):
        return False
    progress, number = node.expr, node.ops[0].expr
    if not isinstance(progress, nodes.Getattr) or not _is_of(progress.node, ("loop",)):
        return False
    return progress.attr in _FIRST and _is_number(number, _FIRST[progress.attr])


def _own(body: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    """Yield all nodes in `body` in which ``loop`` is not that of an inner loop.

    In what an inner loop iterates over, in its filter and in its ``else``, it is the outer loop.
    """
    for node in body:
        yield node
        outer = node.iter_child_nodes()
        if isinstance(node, nodes.For):
            outer = iter([node.target, node.iter, *([node.test] if node.test is not None else []), *node.else_])
        yield from _own(outer)


def _with_all(node: nodes.Node, kind: Any) -> Iterator[Any]:
    if isinstance(node, kind):
        yield node
    yield from node.find_all(kind)
