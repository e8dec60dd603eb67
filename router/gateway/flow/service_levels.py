from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.config.model import Config, ModelConfig, RouteConfig, SloConfig
from router.placement.fleet.scaling import Attainment

_NONE = SloConfig()


class ServiceLevels:
    """The targets of each route, and of each model where its route has none."""

    def __init__(self, config: Config) -> None:
        self.attainment = Attainment()
        """How many streams met them lately."""
        self._models = {name: model.slo for name, model in config.models.items()}
        self.adopt(config.routes)

    def adopt_models(self, models: Mapping[str, ModelConfig]) -> None:
        self._models = {name: model.slo for name, model in models.items()}
        self._look()

    def adopt(self, routes: Sequence[RouteConfig]) -> None:
        self._routes = {route.name: route.slo for route in routes}
        self._look()

    def _look(self) -> None:
        self.any = any(slo != _NONE for slo in (*self._routes.values(), *self._models.values()))
        """Whether any target is set."""

    def of(self, route: str, model: str | None) -> SloConfig:
        by_route = self._routes.get(route, _NONE)
        by_model = self._models.get(model, _NONE) if model is not None else _NONE
        return SloConfig(
            ttft=by_model.ttft if by_route.ttft is None else by_route.ttft,
            tpot=by_model.tpot if by_route.tpot is None else by_route.tpot,
        )
