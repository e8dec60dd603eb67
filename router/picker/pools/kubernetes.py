"""Follow the InferenceObjectives and InferenceModelRewrites of a pool at the API server.

llm-d has taken both over from GAIE's experimental group, and a cluster may have either, or none: what is missing is
asked for again, with longer and longer pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from backends.discovery.kubernetes.api import ApiServer, Json, access_to, own_namespace
from backends.discovery.kubernetes.reflector import Reflector
from router.config.model import KubernetesSourceConfig
from router.picker.pools.pool_objects import ObjectsOfPool
from router.picker.pools.rewrites import RewriteRule

log = logging.getLogger("warmroute.picker")

GROUPS: Final = ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2")
"""The one that counts first comes first."""
OBJECTIVES, REWRITES = "inferenceobjectives", "inferencemodelrewrites"
_AGAIN_S: Final = 30.0
_HEAVIEST: Final = 1_000_000
"""The largest weight that the objects may have."""


async def follow_objects(source: KubernetesSourceConfig, adopt: Callable[[str, ObjectsOfPool], None]) -> None:
    """Pass on the objects of the source's pool after each change, until cancelled."""
    while True:
        try:
            await _follow(source, adopt)
        except OSError as error:  # a file of the service account, which may be there later
            log.warning("objectives and rewrites are not read", extra={"pool": source.pool, "reason": str(error)})
        await asyncio.sleep(_AGAIN_S)


async def _follow(source: KubernetesSourceConfig, adopt: Callable[[str, ObjectsOfPool], None]) -> None:
    assert source.pool is not None, "only pools have objects"
    pool, namespace = source.pool, source.namespace or own_namespace()
    api = ApiServer(access_to(source.api_url))
    found: dict[tuple[str, str], Reflector] = {}

    def changed() -> None:
        adopt(pool, objects_of(pool, _items(OBJECTIVES), _items(REWRITES)))

    def _items(kind: str) -> list[Json]:
        return [item for group in GROUPS for item in found[group, kind].objects.values()]

    for group in GROUPS:
        for kind in (OBJECTIVES, REWRITES):
            path = f"/apis/{group}/namespaces/{namespace}/{kind}"
            found[group, kind] = Reflector(api, path, {}, changed, _told_once(path))
    try:
        async with asyncio.TaskGroup() as tasks:
            for one in found.values():
                tasks.create_task(one.run())
    finally:
        await api.aclose()


def _told_once(path: str) -> Callable[[str], None]:
    last = ""

    def failed(reason: str) -> None:
        nonlocal last
        if reason != last:
            log.info("objects of the pool are not read", extra={"path": path, "reason": reason})
        last = reason

    return failed


def objects_of(pool: str, objectives: Iterable[Json], rewrites: Iterable[Json]) -> ObjectsOfPool:
    """Return what the objects say about `pool`. Of two objectives with one name the first counts."""
    priorities: dict[str, int] = {}
    for item in objectives:
        if _is_of(item, pool):
            priority = _object(item.get("spec")).get("priority", 0)
            priorities.setdefault(_name(item), priority if type(priority) is int else 0)
    oldest_first = sorted((item for item in rewrites if _is_of(item, pool)), key=_age)
    return ObjectsOfPool(priorities, [rule for item in oldest_first for rule in _rules(item)])


def _rules(item: Json) -> Iterator[RewriteRule]:
    for rule in _objects(_object(item.get("spec")).get("rules")):
        models = [_object(one.get("model")).get("value") for one in _objects(rule.get("matches"))]
        targets = _targets(rule)
        if targets and all(isinstance(model, str) and model for model in models):
            yield RewriteRule(map(str, models), targets)
        else:
            extra = {"object": _name(item), "pool": _object(_object(item.get("spec")).get("poolRef")).get("name")}
            log.warning("a rule of an InferenceModelRewrite has no usable match or target", extra=extra)


def _targets(rule: Json) -> dict[str, int]:
    """Return models by weight. Without weights all are equal; a target without a model name is left out."""
    targets: dict[str, int] = {}
    for one in _objects(rule.get("targets")):
        model, weight = one.get("modelRewrite"), one.get("weight", 1)
        if isinstance(model, str) and model and type(weight) is int and 0 < weight <= _HEAVIEST:
            targets[model] = targets.get(model, 0) + weight
    return targets


def _age(item: Json) -> tuple[str, str]:
    """Return a key that sorts older objects first."""
    return str(_object(item.get("metadata")).get("creationTimestamp") or ""), _name(item)


def _is_of(item: Json, pool: str) -> bool:
    return _object(_object(item.get("spec")).get("poolRef")).get("name") == pool


def _name(item: Json) -> str:
    return str(_object(item.get("metadata")).get("name") or "")


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
