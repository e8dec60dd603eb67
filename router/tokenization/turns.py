"""Continue the text of a known conversation, where its template lets the text of a new message depend on it alone.

`backends.vllm.turn_loop` proves that of a template. What is kept of a conversation is the place where its turns end:
the known prefix at the last boundary between segments, and the text from there. A next turn is then rendered beside the
first message only, and its text continues that place. Everything else goes by the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.known_bodies import HASH_SEED, BodyStart
from router.tokenization.body.parsed_body import CHAT_PATH
from router.tokenization.hashing import CacheKeys
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.request import adds_special_tokens, api_body

MIN_MESSAGES = 3
MAX_TAIL_BYTES = 16_384
"""A longer text after the last boundary is not kept."""
END_BYTES = 200
"""Memory of a `TurnsEnd` without its texts, rounded up."""


@dataclass(frozen=True, slots=True)
class ChatTurns:
    """A chat whose template is turn-local: the `first` message, and the `messages` after the known ones, or after it.

    `hashes` are running hashes of the messages: of the known ones, then with each further one. `others` stands for all
    else that its tokens depend on.
    """

    local: LocalModel
    body: dict[str, Any]
    first: Any
    messages: list[Any]
    hashes: list[int]
    others: int

    def key(self, index: int) -> int:
        """Return a key of the conversation up to `messages[:index]`."""
        return xxh3_64_intdigest(self.hashes[index].to_bytes(8, "little"), self.others)

    def render(self, messages: Sequence[Any]) -> str:
        return self.local.renderer.render_turns({**self.body, "messages": [self.first, *messages]})


class TurnsEnd(msgspec.Struct, frozen=True, gc=False):
    """Where the turns of a conversation end: `tail` follows the known prefix with the memo's key `prefix`, which is
    `start` bytes long.

    `first_chars` is the length of the first message's text, with all before it. `ending` follows the last turn.
    """

    prefix: int
    start: int
    tail: bytes
    first_chars: int
    ending: bytes

    @property
    def own_bytes(self) -> int:
        return END_BYTES + len(self.tail) + len(self.ending)


@dataclass(frozen=True, slots=True)
class TurnPlaces:
    """Places of a text at which turns end: by the key of the conversation up to there, the bytes before it."""

    places: dict[int, int]
    first_chars: int
    ending: bytes


def chat_turns(
    fields: BodyFields, local: LocalModel, cache_keys: CacheKeys, start: BodyStart | None = None
) -> ChatTurns | None:
    """Return the turns of a chat that is not truncated; None if its text has to be rendered as a whole.

    With `start`, `fields` has the first message and those after the start.
    """
    messages = fields.messages
    if not isinstance(messages, list) or len(messages) < (MIN_MESSAGES if start is None else 1):
        return None
    if fields.chat_template is not None or fields.kv_transfer_params is not None or fields.continue_final_message:
        return None
    if not local.segmenter.settles or adds_special_tokens(CHAT_PATH, fields):
        return None
    if not local.renderer.is_turn_local(with_tools=fields.tools is not None):
        return None
    body = api_body(CHAT_PATH, fields)
    del body["messages"]
    first, new = messages[0], messages[1:]
    try:
        others = xxh3_64_intdigest(msgspec.json.encode((local.seed, cache_keys.seed, body)), HASH_SEED)
        hashes = _running(new, start.key) if start is not None else _running(messages, HASH_SEED)[1:]
    except (TypeError, ValueError, OverflowError, RecursionError):  # a number or a depth that only Python accepts
        return None
    if not hashes or len(new) + (start.messages if start is not None else 1) < MIN_MESSAGES:
        return None
    return ChatTurns(local, body, first, new, hashes, others)


def _running(messages: list[Any], key: int) -> list[int]:
    """Return `key`, then the running hash with each message; nothing if one may be rendered together with others.

    A template that does not know developers gets all their text in the first message.
    """
    hashes = [key]
    for message in messages:
        if type(message) is not dict:
            return []
        role, content = message.get("role"), message.get("content")
        if role == "developer":
            return []
        if len(message) == 2 and type(role) is str and type(content) is str:
            text = f"{len(role)}:{role}{content}".encode("utf-8", "surrogatepass")
        else:  # No text above begins with such a byte.
            text = b"{" + msgspec.json.encode(message)
        key = xxh3_64_intdigest(text, key)
        hashes.append(key)
    return hashes


def places_of(turns: ChatTurns, data: bytes) -> TurnPlaces | None:
    """Return where the last turn and the one before it end in `data`, the text of all; None if that is not found."""
    try:
        whole, first = turns.local.renderer.render({**turns.body, "messages": [turns.first]}), turns.render([])
        last = len(turns.render(turns.messages[-1:]).encode()) - len(first.encode())
    except (Unrenderable, UnicodeEncodeError):
        return None
    ending = whole[len(first) :].encode()
    end = len(data) - len(ending)
    if not whole.startswith(first) or not data.endswith(ending) or not 0 <= last <= end:
        return None
    count = len(turns.messages)
    return TurnPlaces({turns.key(count): end, turns.key(count - 1): end - last}, len(first), ending)
