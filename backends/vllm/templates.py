"""Chat templates: compiled once and run in a sandbox, with the names and behaviour that Hugging Face gives them.

Reference for behaviour: transformers' ``utils/chat_template_utils.py`` (environment, filters, globals) and vLLM's
``renderers/hf.py`` (which variables pass, whether a template takes content as text or as a list of parts).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from backends.vllm.turn_loop import part_with_turns
from backends.vllm.unrenderable import BrokenFile, Unrenderable

MAX_RENDERED_CHARS = 64 * 1024 * 1024
"""A rendering that grows beyond this size is stopped."""
MAX_REPEATED_ITEMS = 1_000_000
"""Longest text or list that ``*`` may make. Jinja itself limits ``range`` to 100,000."""
_OF_DICT = frozenset(dir(dict))
"""Names that the sandbox has to judge, because they are attributes of every dictionary."""


class ChatTemplate:
    """One compiled template. `wants_parts`: it loops over content, so content is given as a list of parts.

    `reads_clock`: it asks for the date, so the same request may render differently later.
    """

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
            part = part_with_turns(tree)
            globals_ = environment.make_globals(None)
            self._turns = (
                Template.from_code(environment, environment.compile(part), globals_) if part is not None else None
            )
        except (TemplateError, RecursionError, ValueError) as error:
            raise BrokenFile(f"chat template does not compile: {error}") from error
        self.source = source
        self.variables = frozenset(find_undeclared_variables(tree))
        self.wants_parts = _walks_over_content(tree)
        self.reads_clock = any(name.name == "strftime_now" for name in tree.find_all(nodes.Name))
        self.knows_developer = '"developer"' in source or "'developer'" in source

    @property
    def is_turn_local(self) -> bool:
        """Return whether each message is rendered from itself and the first one alone (`backends.vllm.turn_loop`)."""
        return self._turns is not None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the rendered text.

        Raises:
            Unrenderable: the template raised, or produced too much.
        """
        return _run(self._template, variables)

    def render_turns(self, variables: Mapping[str, Any]) -> str:
        """Return the text up to the end of the last message, of a template that is turn-local; raises as `render`."""
        assert self._turns is not None
        return _run(self._turns, variables)


def _run(template: Template, variables: Mapping[str, Any]) -> str:
    pieces: list[str] = []
    try:
        context = template.new_context(dict(variables))
        size = 0
        for piece in template.root_render_func(context):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_RENDERED_CHARS:
                raise Unrenderable("the rendered prompt is too long")
    except Unrenderable:
        raise
    except Exception as error:  # a template is a program and may raise anything
        raise Unrenderable(f"chat template: {type(error).__name__}: {error}", refused=True) from error
    return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item, with a short way for messages that lack a field that the template asks for.

        The sandbox looks for an attribute then, which takes a fifth of the time of a conversation of 40 turns.
        """
        try:
            return obj[argument]
        except (TypeError, LookupError):
            if type(obj) is dict and type(argument) is str and argument not in _OF_DICT:
                return self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) * max(1, abs(left)).bit_length() > 4096:
            raise SecurityError("a power this large is not computed")
        if operator == "*":
            items, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(items, (str, list, tuple)) and len(items) * times > MAX_REPEATED_ITEMS:
                raise SecurityError("a repetition this long is not made")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """``{% generation %}`` marks assistant text for training; here it only passes its body through."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own shape

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """``dict`` for templates without the type itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=Namespace
    )
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 - templates may name it
    return datetime.now().strftime(format)


def _walks_over_content(tree: nodes.Template) -> bool:
    """Return whether a loop of the template runs over a message's content (vLLM's content format "openai")."""
    try:
        return any(True for _ in _content_loops(tree))
    except (AttributeError, AssertionError, RecursionError):
        return False


def _content_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    messages = _aliases(tree, "messages")
    items = {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, name) for name in messages)
    }
    in_macros = _loops_in_macros(tree, items)
    for loop in tree.find_all(nodes.For):
        named = in_macros.get(id(loop), {"content"})
        over_named = isinstance(loop.iter, nodes.Name) and loop.iter.name in named
        if over_named or any(_reads(loop.iter, item, "content") for item in items):
            yield loop


def _loops_in_macros(tree: nodes.Template, items: set[str]) -> dict[int, set[str]]:
    """Return, for each loop inside a macro, the macro's parameters that some call fills with a message's content."""
    found: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        filled: set[str] = set()
        for call in tree.find_all(nodes.Call):
            if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
                continue
            given = [*zip(names, call.args, strict=False), *((word.key, word.value) for word in call.kwargs)]
            filled.update(name for name, value in given if any(_reads(value, item, "content") for item in items))
        for loop in macro.find_all(nodes.For):
            found[id(loop)] = filled & set(names)
    return found


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """Return names that some assignment makes equal to `name` or a part of it. Namespace attributes are dotted."""
    known = {name}
    waiting = [name]
    while waiting:
        source = waiting.pop()
        for assignment in tree.find_all(nodes.Assign):
            for alias in _assigned_from(assignment, source):
                if alias not in known:
                    known.add(alias)
                    waiting.append(alias)
    return known


def _assigned_from(assignment: nodes.Assign, source: str) -> list[str]:
    target, value = assignment.target, assignment.node
    if isinstance(target, nodes.Name):
        if _reads(value, source):
            return [target.name]
        if isinstance(value, nodes.Call) and isinstance(value.node, nodes.Name) and value.node.name == "namespace":
            return [f"{target.name}.{word.key}" for word in value.kwargs if _reads(word.value, source)]
    elif isinstance(target, nodes.NSRef) and _reads(value, source):
        return [f"{target.name}.{target.attr}"]
    return []


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Return whether `node` is ``name`` or ``name[key]``, through filters, tests and slices."""
    if isinstance(node, (nodes.Filter, nodes.Test)):
        return _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return _is_name(node, name)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _is_name(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_name(node.node, name)


def _is_name(node: nodes.Node | None, name: str) -> bool:
    if isinstance(node, nodes.Name):
        return node.ctx == "load" and node.name == name
    base, _, attribute = name.rpartition(".")
    return bool(base) and isinstance(node, nodes.Getattr) and node.attr == attribute and _is_name(node.node, base)
