"""What the gateway has to know about a KV connector of vLLM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from backends.vllm.handover.parameters import HandoverError, TransferParams, is_token_ids
from backends.vllm.handover.prefill_answer import PrefillAnswer


class Order(StrEnum):
    """When the decode worker gets its request."""

    AFTER_PREFILL = "after_prefill"
    """After the prefill worker has answered."""
    TOGETHER = "together"
    """At the same time as the prefill worker. It waits for the KV cache."""


class Reporter(StrEnum):
    """Whose usage has the prompt's cached tokens. The other worker reports the tokens that it received as cached."""

    PREFILL = "prefill"
    DECODE = "decode"


class FactSource(StrEnum):
    """Where the facts about a prefill worker come from that its decode worker's request needs (`HandoverPeer`)."""

    NOWHERE = "nowhere"
    """The connector needs none."""
    ANSWER = "answer"
    """From the answer to a prefill (`Connector.introduced`). The first handover of a worker waits for it."""
    BOOTSTRAP = "bootstrap"
    """From the bootstrap server in the prefill worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverPeer:
    """One of the two workers, as a connector addresses it. Fields that no request or setting has given are None.

    `host` is the host of its URL. `side_host` and `side_port` are the address that the connector's other side reads
    from; vLLM adds the data-parallel rank to its ports. `engine_id` changes with each start of a worker.
    """

    host: str
    side_host: str | None = None
    side_port: int | None = None
    engine_id: str | None = None
    rank: int | None = None
    tp_size: int = 1
    pp_size: int = 1

    @property
    def connector_host(self) -> str:
        """The host for transfers: `side_host`, or else the host of the URL."""
        return self.side_host or self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Legs:
    """The two requests of one handover. `transfer_id` is new for each try: workers pair or look up by it."""

    transfer_id: str
    prefill: HandoverPeer
    decode: HandoverPeer


class Connector(ABC):
    """One KV connector. Its constants are facts of vLLM 0.33; its methods build and check ``kv_transfer_params``."""

    name: ClassVar[str]
    vllm_names: ClassVar[tuple[str, ...]]
    """Names in vLLM's ``--kv-transfer-config``, as ``kv_connector``."""
    kv_roles: ClassVar[tuple[str, str]] = ("kv_both", "kv_both")
    """The prefill and the decode worker's ``kv_role``."""
    extra_config: ClassVar[str | None] = None
    """Its ``kv_connector_extra_config`` that it needs."""
    order: ClassVar[Order] = Order.AFTER_PREFILL
    same_request_id: ClassVar[bool] = False
    """The workers pair their requests by an equal ``X-Request-Id``, which must be new for each try."""
    facts_from: ClassVar[FactSource] = FactSource.NOWHERE
    cached_tokens_from: ClassVar[Reporter] = Reporter.DECODE
    ends_by_length: ClassVar[bool] = False
    """The prefill must end by its length: an end-of-sequence token hands nothing over."""
    marks_prefill: ClassVar[bool] = True
    """The prefill's parameters tell the worker that the request is only a prefill."""
    lease_s: ClassVar[float | None] = None
    """How long handed-over blocks stay after the prefill worker's answer, by vLLM's default. A decode worker does not
    notice the end of the lease and reads other content. None: the blocks are not leased."""
    dropped_decode_frees: ClassVar[bool] = True
    """Whether closing the decode worker's connection at any time frees the blocks on both workers."""

    def peer(self, host: str, rank: int | None, labels: Mapping[str, str]) -> HandoverPeer:
        return HandoverPeer(host=host, rank=rank)

    @abstractmethod
    def prefill_params(self, legs: Legs) -> TransferParams | None:
        """Return the prefill request's parameters; None for a plain request.

        Raises:
            HandoverError: a fact about a worker is missing.
        """

    def handed_over(self, answer: PrefillAnswer) -> TransferParams | None:
        """Return what the prefill worker handed over, checked; None if the connector returns nothing.

        Raises:
            HandoverError: nothing usable was handed over.
        """
        self.check_end(answer)
        return None

    def check_end(self, answer: PrefillAnswer) -> None:
        """Check that the prefill ended such that its blocks are there.

        Raises:
            HandoverError: it did not.
        """
        ends = ("length",) if self.ends_by_length else ("length", "stop")
        if answer.finish_reason not in ends:
            raise HandoverError(f"the prefill ended by {answer.finish_reason}")

    def introduced(self, peer: HandoverPeer, answer: PrefillAnswer) -> HandoverPeer | None:
        """Return the prefill worker `peer` with the facts that its answer gives; None if the connector needs none.

        Raises:
            HandoverError: a fact is missing or not valid.
        """
        return None

    @abstractmethod
    def decode_params(self, legs: Legs, handed: TransferParams | None) -> TransferParams | None:
        """Return the decode request's parameters; None for a plain request. `handed` is from `handed_over`.

        Raises:
            HandoverError: a fact about a worker is missing.
        """


def with_token_ids(params: TransferParams | None, token_ids: list[int] | None) -> TransferParams | None:
    """Return `params` with the prompt's token ids, which vLLM then runs instead of rendering the request again."""
    if token_ids is None or not is_token_ids(token_ids):
        return params
    return {**(params or {}), "prompt_token_ids": token_ids}


def known(value: str | int | None, fact: str) -> str | int:
    """Return `value`.

    Raises:
        HandoverError: it is None.
    """
    if value is None:
        raise HandoverError(f"the {fact} of the prefill worker is not known")
    return value
