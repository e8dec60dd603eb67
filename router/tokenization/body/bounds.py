"""Bounds for bodies: the size of a decoded body, and the bodies that are handled on the event loop."""

from __future__ import annotations

from router.tokenization.body.decoding import INLINE_DIGITS_BYTES, LONG_DIGITS_BYTES, long_digit_bytes
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.intake import WHOLE_BYTES
from router.tokenization.body.parsed_body import ParsedBody

INLINE_TURNS = 512
"""Messages of a chat that is rendered on the event loop: at most about 5 ms."""
INLINE_BRACKETS = 1_024
"""The bound for a body with more than plain text messages: objects and arrays of any kind."""
INLINE_COMMAS = 8_192
INLINE_IDS = 32_768
"""Elements of a body with more than plain text, and of a completion's list of token ids or texts."""
ALWAYS_INLINE_BYTES = 8_192
_PLAIN_MEMBERS = 4
MAX_BRACKETS = 100_000
MAX_COMMAS = 400_000
"""Bodies beyond these counts are not decoded. One call of the parser cannot be interrupted, and with these counts it
takes less than 30 ms.
"""
FREE_BRACKETS = 1_024
BYTES_A_BRACKET = 16
"""No conversation has more brackets than 1,024 plus one per 16 bytes, because the shortest message takes 30 bytes."""
MAX_DECODED_BYTES = 32 * 1024 * 1024
"""Largest decoded body."""
BRACKET_BYTES = 300
COMMA_BYTES = 60
"""Memory of an object or array with its names, and of one further element (CPython 3.11), rounded up."""
WIDE_CHARACTER_BYTES = 4
"""Bytes that every character of a string takes if one of them is outside Latin scripts."""


def fits_inline(parsed: ParsedBody) -> bool:
    """Return whether the body is small and simple enough to render its prompt on the event loop."""
    body = parsed.body
    if body is None or len(body) > WHOLE_BYTES:
        return False
    if parsed.whole and len(body) > ALWAYS_INLINE_BYTES and _is_plain_chat(parsed.fields):
        return True
    if not parsed.whole and long_digit_bytes(body) > INLINE_DIGITS_BYTES:
        return False
    most_commas = INLINE_IDS if parsed.whole and isinstance(parsed.fields.prompt, list) else INLINE_COMMAS
    return few_elements(body, most_commas)


def few_elements(body: bytes, most_commas: int = INLINE_COMMAS) -> bool:
    """Return whether the body is small, or has few objects, arrays and elements, counted inside strings too."""
    if len(body) <= ALWAYS_INLINE_BYTES:
        return True
    return body.count(b"{") + body.count(b"[") <= INLINE_BRACKETS and body.count(b",") <= most_commas


def decoded_bytes(parsed: ParsedBody) -> int | None:
    """Estimate the memory of the decoded body; None if it is not to be decoded.

    Brackets and commas inside strings count too, because their exclusion would cost more than it saves.
    """
    body, survey = parsed.body, parsed.survey
    if body is None:
        return None
    if survey is not None:
        brackets, commas, wide, digits = survey.brackets, survey.commas, survey.wide, survey.long_digits
    else:
        brackets, commas, digits = body.count(b"{") + body.count(b"["), body.count(b","), long_digit_bytes(body)
        wide = not body.isascii() or b"\\u" in body
    if brackets > min(MAX_BRACKETS, FREE_BRACKETS + len(body) // BYTES_A_BRACKET) or commas > MAX_COMMAS:
        return None
    if digits > LONG_DIGITS_BYTES:
        return None
    size = len(body) * (WIDE_CHARACTER_BYTES if wide else 1) + brackets * BRACKET_BYTES + commas * COMMA_BYTES
    return size if size <= MAX_DECODED_BYTES else None


def _is_plain_chat(fields: BodyFields) -> bool:
    """Return whether the body has few messages of plain text, and no other part that takes time."""
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
