"""Where the token ids of each model's prompts would come from."""

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
    """`exact`: token ids are to be had, so that a prompt can be compared with what caches hold."""

    exact: bool
    described: str


async def prompt_origins(config: Config, served: Mapping[str, tuple[ServedModel, str]]) -> dict[str, PromptOrigin]:
    """By model name; `served` gives each model's card and the base URL of a worker that serves it.

    Each is asked for the identity of a short conversation, as the gateway would; a worker may be asked to tokenise it.
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
