"""The operator's names for models: aliases, fallbacks and the default (`models` in the settings). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router.config.model import ModelConfig


class ModelNames:
    """Finds the model that a request means, and the models that may serve it in its place."""

    def __init__(self, models: Mapping[str, ModelConfig]) -> None:
        self.adopt(models)

    def adopt(self, models: Mapping[str, ModelConfig]) -> None:
        self.aliases = {alias: name for name, model in models.items() for alias in model.aliases}
        """The model of each alias."""
        self._chains = {name: tuple(_chain(name, models)) for name, model in models.items() if model.fallback}
        self.falls_back = bool(self._chains)
        """Whether any model has a fallback."""
        self.default = next((name for name, model in models.items() if model.default), None)
        """The model of a request that names none; None if there is none."""

    def target(self, name: str) -> str:
        """Return the model that `name` stands for: that of an alias, or itself."""
        return self.aliases.get(name, name)

    def fallbacks(self, model: str | None) -> tuple[str, ...]:
        return self._chains.get(model, ()) if model is not None else ()


def _chain(name: str, models: Mapping[str, ModelConfig]) -> Iterator[str]:
    """Yield the fallback of a model, then that one's fallback, and so on. A circle ends where it closes."""
    seen = {name}
    while (model := models.get(name)) is not None and model.fallback is not None and model.fallback not in seen:
        name = model.fallback
        seen.add(name)
        yield name
