"""The models of a fleet: what its workers list, and the names that they resolve on request."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from backends.worker import ServedModel
from router.config.on_request import OnRequest
from router.placement.fleet.endpoints import FleetEndpoint


class FleetModels:
    """Answers questions about names of models. The answers are kept until `forget`."""

    def __init__(self, endpoints: Mapping[str, FleetEndpoint]) -> None:
        self._endpoints = endpoints
        self._on_request = OnRequest({})
        self._adapters: frozenset[str] | None = None
        self._listed: frozenset[str] | None = None
        self._different: tuple[str, ...] | None = None
        self._bases: dict[str, str | None] = {}

    def resolve(self, on_request: OnRequest) -> None:
        """Use other rules for names that workers resolve on request."""
        self._on_request = on_request
        self.forget()

    def forget(self) -> None:
        self._adapters = self._listed = self._different = None
        self._bases.clear()

    def base(self, model: str | None) -> str | None:
        """Return the model whose workers resolve `model` on request; None if `model` is a usual name.

        Without a rule for a name that the settings have and no worker lists, that is the fleet's only model. An adapter
        that only workers of its base list, because they have loaded it, may be loaded by the others, too.
        """
        if model is None:
            return None
        bases = self._bases
        if model not in bases:
            if len(bases) >= 1_024:  # bounded, because the names come from clients
                bases.clear()
            bases[model] = self._find_base(model)
        return bases[model]

    def _find_base(self, model: str) -> str | None:
        base = self._on_request.base(model)
        if base is None:
            models = self.different
            only = model in self._on_request.named and len(models) == 1 and not self.lists(model)
            return models[0] if only else None
        for endpoint in self._endpoints.values():
            for card in endpoint.facts.models if endpoint.facts is not None else ():
                if card.id == model and not (card.parent and endpoint.may_serve(base)):
                    return None
        return base

    def adapter(self, model: str | None) -> str | None:
        """Return `model` if it is a LoRA adapter on some worker, or a name that one resolves on request, else None."""
        adapters = self._adapters
        if adapters is None:
            adapters = self._adapters = frozenset(card.id for card in self._cards() if card.parent)
        return model if model in adapters or self.base(model) is not None else None

    def lists(self, model: str) -> bool:
        listed = self._listed
        if listed is None:
            listed = self._listed = frozenset(card.id for card in self._cards())
        return model in listed

    def served(self) -> tuple[ServedModel, ...]:
        """Return the models of all workers; of several cards with one id, the one with the longest context."""
        union: dict[str, ServedModel] = {}
        for card in self._cards():
            kept = union.get(card.id)
            if kept is None or (kept.max_model_len or 0) < (card.max_model_len or 0):
                union[card.id] = card
        return tuple(union.values())

    @property
    def different(self) -> tuple[str, ...]:
        """One name of each model. Adapters, and further names of a model by its `root`, do not count."""
        found = self._different
        if found is None:
            found = self._different = _different(self._cards())
        return found

    def among(self, within: Container[str]) -> tuple[str, ...]:
        """Return one name of each model of the endpoints in `within`."""
        known = [one.facts for name, one in self._endpoints.items() if name in within and one.facts is not None]
        return _different(card for facts in known for card in facts.models)

    def known(self, model: str) -> bool | None:
        """Return whether any worker serves `model`; None if that cannot be known yet.

        A worker that is down counts with the models that it listed last, and a worker that has never answered with
        none. The result is None in three cases: no worker has listed models yet, a first probe has not ended, or a
        worker does not list its models.
        """
        if any(card.id == model for card in self._cards()):
            return True
        endpoints = self._endpoints.values()
        open_ones = any(
            not endpoint.health.probed if endpoint.facts is None else not endpoint.facts.models
            for endpoint in endpoints
        )
        return False if any(endpoint.models_known for endpoint in endpoints) and not open_ones else None

    def _cards(self) -> list[ServedModel]:
        known = [endpoint.facts for endpoint in self._endpoints.values() if endpoint.facts is not None]
        return [card for facts in known for card in facts.models]


def _different(cards: Iterable[ServedModel]) -> tuple[str, ...]:
    by_root: dict[str, str] = {}
    for card in cards:
        if not card.parent:
            by_root.setdefault(card.root or card.id, card.id)
    return tuple(by_root.values())
