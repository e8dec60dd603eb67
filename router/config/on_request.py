"""Names that workers resolve on request, such as adapters of a resolver plug-in, and their base models. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from router.config.model import ModelConfig


class OnRequest:
    """Finds the base model of a name by `models.BASE.on_request`: exact names first, then the longest pattern.

    `named`: models of the settings that may be adapters, because they have no files and no fallback of their own.
    """

    __slots__ = ("_exact", "_prefixes", "named")

    def __init__(self, models: Mapping[str, ModelConfig]) -> None:
        names = [(name, base) for base, model in models.items() for name in model.on_request]
        self._exact = {name: base for name, base in names if not name.endswith("*")}
        prefixes = [(name.removesuffix("*"), base) for name, base in names if name.endswith("*")]
        self._prefixes = sorted(prefixes, key=lambda rule: len(rule[0]), reverse=True)
        self.named = frozenset(name for name, model in models.items() if _may_be_adapter(model))

    def base(self, name: str) -> str | None:
        """Return the base model of `name` by the settings; None if no rule has the name."""
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        return next((base for prefix, base in self._prefixes if name.startswith(prefix) and name != base), None)


def _may_be_adapter(model: ModelConfig) -> bool:
    return model.dir is None and model.chat_template is None and model.fallback is None and not model.on_request
