"""Find the source of token ids for each model's prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from backends.worker import ServedModel
from router.config.model import Config
from router.tokenization.identity import Identity
from router.tokenization.intake import CHAT_PATH, parse


@dataclass(frozen=True, slots=True)
class PromptOrigin:
    """`exact`: token ids are available, so a prompt can be compared with the blocks in caches."""

    exact: bool
    described: str


async def prompt_origins(config: Config, served: Mapping[str, tuple[ServedModel, str]]) -> dict[str, PromptOrigin]:
    """Return the source by model name. `served` gives each model's card and the base URL of a worker that serves it.

    For each model this identifies a short conversation, as the gateway would; a worker may have to tokenise it.
    """
    identity = Identity(config)
    try:
        for name, (card, url) in served.items():
            identity.learn(name, card.root, f"{url}/tokenize", card.parent)
        return {name: await _origin(identity, name, card) for name, (card, _) in served.items()}
    finally:
        await identity.aclose()


async def _origin(identity: Identity, name: str, card: ServedModel) -> PromptOrigin:
    body = {"model": name, "messages": [{"role": "user", "content": "warmroute check"}]}
    parsed = parse(CHAT_PATH, msgspec.json.encode(body))
    prompt = await identity.identify(CHAT_PATH, parsed, name if card.parent else None)
    return PromptOrigin(prompt is not None and prompt.exact, identity.describe(name))
