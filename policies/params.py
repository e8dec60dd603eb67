"""Base of the policies' typed parameters."""

from __future__ import annotations

import msgspec


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable, named parameters; unknown names are refused. A rule without parameters uses this one as it is."""
