"""From a request body to the text and token ids that vLLM would run for it.

Facts of vLLM 0.33 kept here: ``add_generation_prompt`` defaults to true and takes precedence over
`chat_template_kwargs`. Variables that a template does not name are dropped, and so are variables with the value null or
"auto". ``reasoning_effort`` switches `enable_thinking` on or off unless the request sets it. ``continue_final_message``
is not a variable. Chat prompts get no special tokens beyond the template's; plain completions and Responses do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from backends.vllm.conversation import Message, conversation, tools_for_template, without_developer_role
from backends.vllm.messages_api import THINKING_EFFORTS, chat_of_messages, refuses_late_system
from backends.vllm.responses_api import chat_of_responses
from backends.vllm.templates import ChatTemplate
from backends.vllm.tokenizer import SpecialToken, TokenizerFiles, is_failure, read_tokenizer_files
from backends.vllm.unrenderable import BrokenFile, Unrenderable

__all__ = ["ChatRenderer", "Unrenderable"]

_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""The mark that transformers uses. A different mark could change the prompt, because a template may show its length or
turn it into capitals.
"""
_RESERVED_KWARGS = frozenset(
    {"chat_template", "conversation", "messages", "return_assistant_tokens_mask", "sanitize_control_tokens", "tools"}
)
"""Parameters of transformers' ``apply_chat_template`` that change more than a variable of the template."""
_WITH_TOKENS_KWARGS = frozenset({"max_length", "padding", "return_tensors", "tokenizer_kwargs", "truncation"})
"""Parameters that count only if the request has the template's text tokenised at once (``tokenize``)."""
_NO_VARIABLES = _WITH_TOKENS_KWARGS | {"continue_final_message", "return_dict", "tokenize"}
_GIVEN_TEMPLATES = 16
_UNSET = (None, "auto")
_DEFAULT_KWARGS = {"cohere_format": "cmd4"}
"""Variables that vLLM passes to the template of every model (``--cohere-format``)."""


class ChatRenderer:
    """Template and tokenizer of one model folder. Thread-safe after construction."""

    def __init__(self, files: TokenizerFiles, chat_template: str | None = None) -> None:
        sources = {"default": chat_template} if chat_template is not None else files.templates
        self._templates = {name: ChatTemplate(source) for name, source in sources.items() if name in _USED_TEMPLATES}
        self._named_tokens = files.named_tokens
        self._given_template = lru_cache(_GIVEN_TEMPLATES)(ChatTemplate)
        self.tokenizer = files.tokenizer
        self.special: tuple[SpecialToken, ...] = files.special

    @classmethod
    def load(
        cls, folder: Path | str, chat_template: str | None = None, tokenizer: Path | str | None = None
    ) -> ChatRenderer:
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja from `folder`.

        `chat_template` is a file or the template itself, as for ``vllm serve --chat-template``. `tokenizer` is a
        tokenizer.json, or a folder with one, outside `folder`.

        Raises:
            Unrenderable: the files do not show how vLLM renders this model.
        """
        files = read_tokenizer_files(Path(folder), Path(tokenizer) if tokenizer is not None else None)
        return cls(files, _template_text(chat_template))

    @property
    def eos_id(self) -> int | None:
        """Return the id of the end-of-sequence token; None if the files name none."""
        name = self._named_tokens.get("eos_token")
        return self.tokenizer.token_to_id(name) if name else None

    @property
    def reads_clock(self) -> bool:
        """Return whether equal bodies may render differently at different times."""
        return any(template.reads_clock for template in self._templates.values())

    def render(self, body: Mapping[str, Any]) -> str:
        """Return the prompt text of a chat completions body. Its `chat_template`, if any, is run, so it must be
        trusted.

        Raises:
            Unrenderable: with the reason; no other exception leaves this method.
        """
        return _guarded(lambda: self._render(body))

    def is_turn_local(self, *, with_tools: bool) -> bool:
        name = "tool_use" if with_tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        return template is not None and template.is_turn_local

    def render_turns(self, body: Mapping[str, Any]) -> str:
        """Return the text of a chat completions body up to the end of its last turn, with a template that is
        turn-local; raises as `render`.
        """
        return _guarded(lambda: self._render(body, turns=True))

    def render_messages(self, body: Mapping[str, Any]) -> str:
        """Return the prompt text of an Anthropic Messages body; raises as `render` does."""
        return _guarded(lambda: self._render(chat_of_messages(body, self)))

    def render_responses(self, body: Mapping[str, Any]) -> str:
        """Return the prompt text of an OpenAI Responses body; raises as `render` does."""
        return _guarded(lambda: self._render(chat_of_responses(body), typed=False))

    @cached_property
    def merges_late_system(self) -> bool:
        """See `backends.vllm.messages_api.TemplateHabits`."""
        return any(refuses_late_system(self._template(with_tools).source) for with_tools in (False, True))

    @cached_property
    def disabled_effort(self) -> str:
        """See `backends.vllm.messages_api.TemplateHabits`: "low" if the template knows no "none", or ignores it."""
        without = self._probe("none")
        if without is None or any(self._probe(effort) == without for effort in THINKING_EFFORTS):
            return "low"
        return "none"

    def _probe(self, effort: str) -> str | None:
        try:
            return self.render({"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": effort})
        except Unrenderable:
            return None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`. Releases the GIL while it works.

        Raises:
            Unrenderable: text that is not valid Unicode.
        """
        try:
            ids: list[int] = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except BaseException as error:  # tokenizers raises bare Exception and TypeError, and panics
            if not is_failure(error):
                raise
            raise Unrenderable(f"tokenizer: {error}", refused=True) from error
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def _render(self, body: Mapping[str, Any], *, typed: bool = True, turns: bool = False) -> str:
        _refuse_unknown_outcome(body)
        tools = tools_for_template(body.get("tools"))
        template = self._template(tools is not None, body.get("chat_template"))
        messages = conversation(body.get("messages"), parts=template.wants_parts, typed=typed)
        if not template.knows_developer and any(message["role"] == "developer" for message in messages):
            messages = without_developer_role(messages)
        variables = self._variables(template, body, tools)
        if body.get("continue_final_message", False):
            return _render_open_ended(template, variables, messages)
        variables["messages"] = messages
        return template.render_turns(variables) if turns else template.render(variables)

    def _template(self, with_tools: bool, given: object = None) -> ChatTemplate:
        if given is not None:
            if not isinstance(given, str) or "{" not in given:
                raise Unrenderable("the request names a chat template")
            return self._given_template(given)
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        template = self._templates.get("default")
        if template is None:
            raise Unrenderable("the model has no chat template")
        return template

    def _variables(
        self, template: ChatTemplate, body: Mapping[str, Any], tools: list[dict[str, Any]] | None
    ) -> dict[str, Any]:
        asked = body.get("chat_template_kwargs") or {}
        if not _RESERVED_KWARGS.isdisjoint(asked) or (
            asked.get("tokenize") and not _WITH_TOKENS_KWARGS.isdisjoint(asked)
        ):
            raise Unrenderable("chat_template_kwargs names a reserved variable")
        given = {name: value for name, value in asked.items() if value not in _UNSET}
        effort = body.get("reasoning_effort")
        wanted: dict[str, Any] = {"tools": tools, "documents": None, **_DEFAULT_KWARGS, **given}
        wanted |= {name: body[name] for name in ("documents", "reasoning_effort") if body.get(name) is not None}
        if effort is not None and "enable_thinking" not in asked:
            wanted["enable_thinking"] = effort != "none"
        wanted["add_generation_prompt"] = body.get("add_generation_prompt", True)
        always = ("tools", "documents", "add_generation_prompt")
        known = template.variables - _NO_VARIABLES
        kept = {name: value for name, value in wanted.items() if name in always or name in known}
        return {**self._named_tokens, **kept}


def gives_token_ids(chat_template_kwargs: object) -> bool:
    return isinstance(chat_template_kwargs, dict) and bool(chat_template_kwargs.get("tokenize"))


def _guarded(render: Callable[[], str]) -> str:
    try:
        return render()
    except Unrenderable:
        raise
    except Exception as error:  # a body may have any shape
        raise Unrenderable(f"{type(error).__name__}: {error}") from error


_USED_TEMPLATES = ("default", "tool_use")


def _refuse_unknown_outcome(body: Mapping[str, Any]) -> None:
    """Refuse fields whose effect on the prompt depends on the worker."""
    if body.get("mm_processor_kwargs"):
        raise Unrenderable("the request sets mm_processor_kwargs")


def _render_open_ended(template: ChatTemplate, variables: dict[str, Any], messages: list[Message]) -> str:
    """Render so that the last message stays open: mark its end, render, and cut at the mark.

    If the template trims the end of the text, trailing space of the message is lost too, as in transformers.
    """
    if variables["add_generation_prompt"]:
        raise Unrenderable("continue_final_message and add_generation_prompt exclude each other", refused=True)
    last = messages[-1]
    content = last["content"]
    if isinstance(content, str):
        text, last["content"] = content, content + _CONTINUE_MARK
    elif content:
        text, content[-1]["text"] = content[-1]["text"], content[-1]["text"] + _CONTINUE_MARK
    else:
        raise Unrenderable("the final message has no text to continue", refused=True)
    rendered = template.render({**variables, "messages": messages})
    mark = _CONTINUE_MARK.strip()
    if mark not in rendered or text.strip() not in rendered:
        raise Unrenderable("the template drops the end of the final message", refused=True)
    place = rendered.rindex(mark)
    if rendered.startswith(_CONTINUE_MARK, place):
        return rendered[:place]
    return rendered[:place].rstrip()


def _template_text(chat_template: str | None) -> str | None:
    if chat_template is None or any(character in chat_template for character in "{}\n"):
        return chat_template
    try:
        return Path(chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenFile(f"chat template {chat_template}: {error}") from error
