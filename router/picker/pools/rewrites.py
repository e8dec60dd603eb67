"""Models in place of those that clients name, by weight, as in an InferenceModelRewrite of GAIE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from router.placement.policies.weighted import WeightedNames


class RewriteRule:
    """One rule. `models` are the names that it matches; empty: every name, and a request without one."""

    __slots__ = ("models", "targets")

    def __init__(self, models: Iterable[str], targets: Mapping[str, int]) -> None:
        self.models = tuple(models)
        self.targets = WeightedNames(",".join(self.models), targets)


class Rewrites:
    """Rules in their order. A rule that names a model comes before one that matches all."""

    __slots__ = ("_by_model", "_of_all", "_rules")

    def __init__(self, rules: Sequence[RewriteRule]) -> None:
        self._rules = len(rules)
        self._by_model: dict[str, RewriteRule] = {}
        self._of_all: RewriteRule | None = None
        for rule in rules:
            for model in rule.models:
                self._by_model.setdefault(model, rule)
            if not rule.models:
                self._of_all = self._of_all or rule

    def __len__(self) -> int:
        return self._rules

    def target(self, model: str | None, session: str | None) -> str | None:
        """Return the model that serves in place of `model`, the same for a whole session; None without a rule."""
        rule = self._of_all if model is None else self._by_model.get(model, self._of_all)
        if rule is None:
            return None
        return rule.targets.turn() if session is None else rule.targets.draw(session)
