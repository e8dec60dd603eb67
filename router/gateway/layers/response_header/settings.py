from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ResponseHeaderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}$")]
    value: Annotated[str, Meta(pattern=r"^[ -~]{0,256}$")]
