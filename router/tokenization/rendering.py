"""Make a prompt from rendered text, with the help of remembered prefixes."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from backends.vllm.unrenderable import Unrenderable
from router.residency.chain import TOKEN_BYTES
from router.residency.prompt import Prompt, PromptSource
from router.tokenization.body.known_bodies import KnownBodies
from router.tokenization.byte_bounded_lru import ByteBoundedLru
from router.tokenization.hashing import CacheKeys
from router.tokenization.local.chains import IdsChain, NodeChain, RecentTexts
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.local.memo import MemoNode, SegmentMemo, common_tokens, packed_ids
from router.tokenization.local.segmenter import Segments
from router.tokenization.turns import MAX_TAIL_BYTES, ChatTurns, TurnPlaces, TurnsEnd, places_of

RECENT_BYTES = 8 * 1024 * 1024
"""Bytes of the latest prompts' texts, kept for block sizes that are requested when a prompt is placed."""
MAX_TEXT_BYTES = 8 * 1024 * 1024
"""Prompts longer than any context window go without token ids."""


@dataclass(frozen=True, slots=True)
class SegmentedText:
    """A prompt's text (UTF-8) in segments. `framed`: it gets the tokenizer's own first tokens.

    With `prefix`, the memo's key of a known prefix, the text continues that prefix, which has `prefix_bytes`, by
    `new_messages` messages. `turns` says where turns end.
    """

    local: LocalModel
    framed: bool
    data: bytes
    segments: Segments
    parts: list[bytes]
    prefix: int | None = None
    prefix_bytes: int = 0
    new_messages: int = 0
    turns: TurnPlaces | None = None


def segmented_text(local: LocalModel, text: str, *, framed: bool) -> SegmentedText:
    """Divide `text` into segments. Pure.

    Raises:
        Unrenderable: it is too long, not valid Unicode, or the tokenizer would append tokens to it.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise Unrenderable("the prompt is not valid Unicode", refused=True) from error
    if len(data) > MAX_TEXT_BYTES:
        raise Unrenderable("the prompt is longer than any context window")
    if framed and local.appends_tokens:
        raise Unrenderable("the tokenizer appends tokens to a completion's prompt")
    segments = local.segmenter.segments(data)
    return SegmentedText(local, framed, data, segments, _parts(data, segments))


def _parts(data: bytes, segments: Segments) -> list[bytes]:
    return [data[start:end] for start, end in zip(segments.starts, [*segments.starts[1:], len(data)], strict=True)]


def with_turns(text: SegmentedText, turns: ChatTurns) -> SegmentedText:
    return replace(text, turns=places_of(turns, text.data))


def continued_text(turns: ChatTurns, index: int, end: TurnsEnd) -> SegmentedText | None:
    """Return the text of `turns` after the prefix of `end`, at which `messages[:index]` end.

    None: it is too long or cannot be rendered, which the whole text shows again.
    """
    local = turns.local
    messages = turns.messages[index:]
    try:
        new = turns.render(messages)[end.first_chars :].encode()
    except (Unrenderable, UnicodeEncodeError):
        return None
    data = end.tail + new + end.ending
    if end.start + len(data) > MAX_TEXT_BYTES:
        return None
    segments = local.segmenter.segments(data, before_bytes=end.start)
    places = TurnPlaces({turns.key(len(turns.messages)): len(end.tail) + len(new)}, end.first_chars, end.ending)
    parts = _parts(data, segments)
    return SegmentedText(local, False, data, segments, parts, end.prefix, end.start, len(messages), places)


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """A text of which the memo knows the first `known` segments, which end at `node`. `key` stands for the request.

    A prompt of more than `most` tokens is truncated, so it is not the whole text.
    """

    key: int
    keys: CacheKeys
    text: SegmentedText
    node: MemoNode
    known: int
    most: int | None

    @property
    def new_bytes(self) -> int:
        text = self.text
        return len(text.data) - text.segments.starts[self.known] if self.known < len(text.parts) else 0

    def encode(self) -> list[array[int]] | array[int] | None:
        """Return the ids of the new segments; if they cannot be split, of the whole text, or None if its beginning is
        not here. Pure: made for a thread.
        """
        text = self.text
        if not self.new_bytes:
            return [array("I")] * (len(text.parts) - self.known)
        new = text.data[text.segments.starts[self.known] :].decode()
        by_part = text.local.encode_from(new, text.segments, self.known)
        if by_part is not None or text.prefix is not None:
            return by_part
        return text.local.encode(text.data.decode(), framed=text.framed)


@dataclass(frozen=True, slots=True)
class _IdentifiedRequest:
    """A prompt identified before, and the prefix that it keeps in use."""

    prompt: Prompt
    node: MemoNode


class PromptMemory:
    """Known prefixes and identified requests, within `max_bytes`; in addition the latest texts."""

    def __init__(self, max_bytes: int) -> None:
        self._memo = SegmentMemo(max_bytes * 3 // 4)
        self._answered: ByteBoundedLru[int, _IdentifiedRequest] = ByteBoundedLru(max_bytes * 5 // 32)
        self._turns: ByteBoundedLru[int, TurnsEnd] = ByteBoundedLru(max_bytes // 16)
        self.bodies = KnownBodies(max_bytes // 32)
        self.recent = RecentTexts(RECENT_BYTES)

    def answered(self, key: int) -> Prompt | None:
        answered = self._answered.get(key)
        if answered is None:
            return None
        self._memo.touch(answered.node)
        return answered.prompt

    def continued(self, turns: ChatTurns) -> SegmentedText | None:
        """Return the text that continues the longest known part of a conversation; None if none is known."""
        for index in range(len(turns.messages), -1, -1):
            end = self._turns.get(turns.key(index))
            if end is not None and self._memo.known(end.prefix) is not None:
                return continued_text(turns, index, end)
        return None

    def look_up(self, key: int, keys: CacheKeys, text: SegmentedText, most: int | None = None) -> KnownPrefix:
        local = text.local
        root = self._memo.known(text.prefix) if text.prefix is not None else None
        if root is None:
            root = self._memo.root(local.seed ^ text.framed, keys, local.prefix if text.framed else array("I"))
        node, known = self._memo.find(root, text.parts)
        return KnownPrefix(key, keys, text, node, known, most)

    def finish(self, rendered: KnownPrefix, ids: list[array[int]] | array[int]) -> Prompt | None:
        """Remember the ids of `KnownPrefix.encode` and return the prompt; None if the prompt is a part of the text."""
        most = rendered.most if rendered.most is not None else MAX_TEXT_BYTES
        if isinstance(ids, array):
            return self.of_ids([ids], rendered.keys, PromptSource.RENDERED) if len(ids) <= most else None
        text, keys = rendered.text, rendered.keys
        node = self._memo.extend(rendered.node, text.parts[rendered.known :], ids, keys)
        if node.tokens > most:
            return None
        if text.turns is not None:
            self._keep_ends(text, node, text.turns)
        whole = text.data if text.prefix is None else None
        chain = NodeChain(self._memo, node, text.local, whole, keys, framed=text.framed)
        self.recent.hold(chain, len(text.data))
        prompt = Prompt(node.tokens, PromptSource.RENDERED, chain)
        if not text.local.renderer.reads_clock:
            self._answered.put(rendered.key, _IdentifiedRequest(prompt, node), node.path_bytes + node.tokens)
        return prompt

    def _keep_ends(self, text: SegmentedText, node: MemoNode, turns: TurnPlaces) -> None:
        starts = text.segments.starts
        for key, place in turns.places.items():
            segment = text.local.segmenter.settled(text.data, text.segments, place)
            start, tail = starts[segment], text.data[starts[segment] : place]
            before: MemoNode | None = node
            for _ in range(len(starts) - segment):
                before = before.parent if before is not None else None
            if before is None or before.parent is None or len(tail) > MAX_TAIL_BYTES:
                continue
            end = TurnsEnd(before.key, text.prefix_bytes + start, tail, turns.first_chars, turns.ending)
            self._turns.put(key, end, end.own_bytes)

    def of_ids(
        self, prompts: list[array[int]], keys: CacheKeys, source: PromptSource, *, stream: bool = False
    ) -> Prompt:
        """Return a prompt given by its ids; of several, the one whose cached tokens vLLM reports.

        In a stream this is the prompt that answers first. In a whole answer it is the last prompt, which finds the
        blocks of the prompts before it.
        """
        packed = packed_ids(prompts[0 if stream else -1])
        before = [] if stream else [packed_ids(prompt) for prompt in prompts[:-1]]
        chain = IdsChain(packed, keys)
        self.recent.hold(chain, len(packed))
        return Prompt(
            sum(map(len, prompts)),
            source,
            chain,
            multiple=len(prompts) > 1,
            own_tokens=len(packed) // TOKEN_BYTES,
            shared_tokens=max((common_tokens(packed, other) for other in before), default=0),
        )

    def statistics(self) -> dict[str, object]:
        return {
            "memo": self._memo.statistics(),
            "requests": self._answered.statistics(),
            "turns": self._turns.statistics(),
            "bodies": self.bodies.statistics(),
            "recent": self.recent.statistics(),
        }
