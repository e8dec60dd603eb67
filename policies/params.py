"""Base of the policies' typed parameters."""

from __future__ import annotations

import msgspec


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable, named parameters. Unknown names are refused. A policy without parameters uses this class itself."""
