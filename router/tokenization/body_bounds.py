"""What a body may become: how large its decoded form may be, and what is done on the event loop."""

from __future__ import annotations

from router.tokenization.fields import BodyFields
from router.tokenization.intake import WHOLE_BYTES, ParsedBody

INLINE_TURNS = 512
"""Messages of a chat that is rendered on the event loop: at most some 5 ms."""
INLINE_BRACKETS = 1_024
"""The same for a body that has more than messages of text in it: objects and arrays, whatever they are."""
INLINE_COMMAS = 8_192
INLINE_IDS = 32_768
"""Elements of such a body, and of a completion's list of token ids or texts."""
ALWAYS_INLINE_BYTES = 8_192
_PLAIN_MEMBERS = 4
MAX_BRACKETS = 100_000
MAX_COMMAS = 400_000
"""Bodies with more in them are not decoded: one call of the parser, which nothing can interrupt, stays below 30 ms."""
FREE_BRACKETS = 1_024
BYTES_A_BRACKET = 16
"""More brackets than these, and one for so many bytes, are in no conversation: the shortest message takes 30 bytes."""
MAX_DECODED_BYTES = 32 * 1024 * 1024
"""What one decoded body may take."""
BRACKET_BYTES = 300
COMMA_BYTES = 60
"""Memory for an object or array with the names in it, and for one further element (CPython 3.11), rounded up."""
WIDE_CHARACTER_BYTES = 4
"""One character outside of Latin scripts makes every character of its string take as much."""


def fits_inline(parsed: ParsedBody) -> bool:
    """Whether the body is so small and so simple that its prompt can be rendered on the event loop."""
    body = parsed.body
    if body is None or len(body) > WHOLE_BYTES:
        return False
    if len(body) <= ALWAYS_INLINE_BYTES or (parsed.whole and _is_plain_chat(parsed.fields)):
        return True
    most_commas = INLINE_IDS if parsed.whole and isinstance(parsed.fields.prompt, list) else INLINE_COMMAS
    return body.count(b"{") + body.count(b"[") <= INLINE_BRACKETS and body.count(b",") <= most_commas


def decoded_bytes(parsed: ParsedBody) -> int | None:
    """About how much memory the decoded body would take; None where it is not to be decoded.

    Brackets and commas inside strings count, too: telling them apart would cost more than it saves.
    """
    body, survey = parsed.body, parsed.survey
    if body is None:
        return None
    if survey is not None:
        brackets, commas, wide = survey.brackets, survey.commas, survey.wide
    else:
        brackets, commas = body.count(b"{") + body.count(b"["), body.count(b",")
        wide = not body.isascii() or b"\\u" in body
    if brackets > min(MAX_BRACKETS, FREE_BRACKETS + len(body) // BYTES_A_BRACKET) or commas > MAX_COMMAS:
        return None
    size = len(body) * (WIDE_CHARACTER_BYTES if wide else 1) + brackets * BRACKET_BYTES + commas * COMMA_BYTES
    return size if size <= MAX_DECODED_BYTES else None


def _is_plain_chat(fields: BodyFields) -> bool:
    """Whether there are few messages of plain text, and nothing else that takes time."""
    messages = fields.messages
    if not isinstance(messages, list) or len(messages) > INLINE_TURNS or fields.tools or fields.documents:
        return False
    if fields.chat_template_kwargs or fields.kv_transfer_params or fields.system:
        return False
    for message in messages:
        if not isinstance(message, dict) or len(message) > _PLAIN_MEMBERS:
            return False
        for value in message.values():
            if not isinstance(value, str):
                return False
    return True
