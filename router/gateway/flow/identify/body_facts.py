from __future__ import annotations

import msgspec

from router.tokenization.body.intake import ParsedBody
from router.tokenization.body.multipart import Form


class BodyFacts(msgspec.Struct, frozen=True):
    """The parsed parts of a body. `fields` is set for any JSON object, `intake` if the prompt can be identified, `form`
    for a form."""

    model: str | None
    stream: bool = False
    fields: ParsedBody | None = None
    intake: ParsedBody | None = None
    previous_response_id: str | None = None
    form: Form | None = None
