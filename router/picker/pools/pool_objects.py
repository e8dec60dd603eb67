"""Objectives and rewrites of models: those of the settings, which hold in every pool, and those that a pool adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.config.model import PickerConfig
from router.picker.pools.rewrites import RewriteRule, Rewrites


@dataclass(frozen=True, slots=True)
class ObjectsOfPool:
    """What Kubernetes has about one InferencePool. Rules are in the order of their precedence."""

    priorities: Mapping[str, int] = field(default_factory=dict)
    """By the name of an objective."""
    rules: Sequence[RewriteRule] = ()


class PoolObjects:
    """Answers by pool. The pool None stands for all."""

    def __init__(self, config: PickerConfig) -> None:
        self._priorities = config.objectives
        self._rules = [RewriteRule(one.models, one.targets) for one in config.rewrites]
        self._added: dict[str, ObjectsOfPool] = {}
        self._merged: dict[str | None, tuple[Mapping[str, int], Rewrites]] = {}

    def adopt(self, pool: str, added: ObjectsOfPool) -> None:
        self._added[pool] = added
        self._merged.clear()

    def priority(self, objective: str, pool: str | None) -> int:
        """Return the priority of an objective: 0 if nobody knows it, and negative if its requests may be refused."""
        return self._of(pool)[0].get(objective, 0)

    def target(self, model: str | None, session: str | None, pool: str | None) -> str | None:
        """Return the model that serves in place of `model`; None without a rule."""
        return self._of(pool)[1].target(model, session)

    def _of(self, pool: str | None) -> tuple[Mapping[str, int], Rewrites]:
        found = self._merged.get(pool)
        if found is None:
            added = [one for name, one in self._added.items() if pool in (None, name)]
            priorities = {name: value for one in added for name, value in one.priorities.items()}
            rules = [*self._rules, *(rule for one in added for rule in one.rules)]
            found = self._merged[pool] = {**priorities, **self._priorities}, Rewrites(rules)
        return found

    def statistics(self) -> dict[str, int]:
        priorities, rules = self._of(None)
        return {"objectives": len(priorities), "rewrites": len(rules)}
