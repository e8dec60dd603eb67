"""Find the source of token ids for each model's prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from backends.worker import ServedModel
from router.config.model import Config
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH
from router.tokenization.local.choices import WORKER
from router.tokenization.local.sources import Way
from router.tokenization.prompt_identifier import PromptIdentifier


@dataclass(frozen=True, slots=True)
class PromptOrigin:
    """`exact`: token ids are available, so a prompt can be compared with the blocks in caches. `slow`: a worker makes
    them, and the settings do not ask for that.
    """

    exact: bool
    described: str
    slow: bool = False


@asynccontextmanager
async def learned_identity(
    config: Config, served: Mapping[str, tuple[ServedModel, str]]
) -> AsyncIterator[PromptIdentifier]:
    """Return the gateway's identification of prompts, which knows the `served` models and has fetched their files.

    `served` gives each model's card and the base URL of a worker that serves it, by model name.
    """
    identity = PromptIdentifier(config)
    try:
        for name, (card, url) in served.items():
            identity.sources.learn(name, card.root, f"{url}/tokenize", card.parent)
        await identity.sources.files_read()
        yield identity
    finally:
        await identity.aclose()


async def prompt_origins(
    identity: PromptIdentifier, served: Mapping[str, tuple[ServedModel, str]]
) -> dict[str, PromptOrigin]:
    """Return the source of token ids by model name.

    For each model this identifies a short conversation, as the gateway would; a worker may have to tokenise it.
    """
    return {name: await _origin(identity, name, card) for name, (card, _) in served.items()}


async def _origin(identity: PromptIdentifier, name: str, card: ServedModel) -> PromptOrigin:
    body = {"model": name, "messages": [{"role": "user", "content": "warmroute check"}]}
    parsed = parse(CHAT_PATH, msgspec.json.encode(body))
    prompt = await identity.identify(CHAT_PATH, parsed, name if card.parent else None)
    slow = identity.sources.way(name) is Way.WORKER and identity.sources.chosen(name) != WORKER
    return PromptOrigin(prompt is not None and prompt.exact, identity.describe(name), slow)
