"""What the operator says of the picker: where it listens, what it knows, and how it is configured."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class CaseProfile(StrEnum):
    CORE = "core"
    STREAMING = "streaming"
    SHEDDING = "shedding"
    PD = "pd"
    LLM_D = "llm-d"


class Given(StrEnum):
    """Options that only some pickers can be tested with."""

    SHEDDABLE = "--sheddable"
    URGENT = "--urgent"
    PREFILL = "--prefill"
    ADAPTER = "--adapter"
    REWRITE = "--rewrite"
    IGNORES_OBJECTIVES = "--ignores-objectives"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the suite waits."""

    answer_s: float = 5.0
    """For each answer. What comes later counts as a hang."""
    silence_s: float = 0.3
    """What stays away for so long is taken not to come."""
    settle_s: float = 1.0
    """From a change of the pool until no pick may contradict it."""
    arrive_s: float = 5.0
    """From the addition of an endpoint until it is used, and from a signal until new streams are refused."""
    pick_p99_s: float = 0.05
    case_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much the cases that count things do."""

    streams: int = 1_000
    resets: int = 1_000
    spread: int = 100
    rewrites: int = 1_000
    timed_picks: int = 200
    large_body_bytes: int = 10_000_000


@dataclass(frozen=True, slots=True)
class Fixture:
    target: str
    """``host:port`` of the picker."""
    tls: bool = False
    ca_file: Path | None = None
    """Without it any certificate passes, as with the gateways, whose pickers sign their own."""
    health: str | None = None
    """``host:port`` of the health service, if it has a port of its own."""
    endpoints: tuple[str, ...] = ()
    """Those of the pool that may be picked, ``ip:port`` each."""
    prefill: tuple[str, ...] = ()
    """Those that only prefill."""
    model: str = "conformance"
    path: str = "/v1/chat/completions"
    sheddable: str = ""
    """Name of an objective with a negative priority."""
    urgent: str = ""
    """Name of an objective with a positive priority."""
    ignores_objectives: bool = False
    """The picker does not honour objectives that clients name."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Endpoint that alone has an adapter, by the adapter's name."""
    rewrites: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Weights of target models, by the name that clients send."""
    profiles: frozenset[CaseProfile] = frozenset(CaseProfile)
    patience: Patience = field(default_factory=Patience)
    effort: Effort = field(default_factory=Effort)

    def has(self, option: Given) -> bool:
        return bool(
            {
                Given.SHEDDABLE: self.sheddable,
                Given.URGENT: self.urgent,
                Given.PREFILL: self.prefill,
                Given.ADAPTER: self.adapters,
                Given.REWRITE: self.rewrites,
                Given.IGNORES_OBJECTIVES: self.ignores_objectives,
            }[option]
        )


def parse_endpoint(text: str) -> str:
    """Return ``ip:port`` in its usual spelling, an IPv6 address in brackets.

    Raises:
        ValueError: `text` is not an address and a port.
    """
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    if not colon or bracketed != (address.version == 6):
        raise ValueError(f"{text!r} is not ip:port, or [ip]:port with IPv6")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{port!r} is no port")
    return f"[{address}]:{int(port)}" if bracketed else f"{address}:{int(port)}"


def address_of(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]
