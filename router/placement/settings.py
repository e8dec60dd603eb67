"""Check the settings of policies and routes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from random import Random

from backends.vllm.handover.offloading_peer import PEER_LABEL, OffloadingPeer
from backends.vllm.handover.parameters import labelled_address
from policies.registry import PolicyError, build_policy, policy_names
from router.config.model import Config, PolicyConfig, RouteConfig
from router.config.problems import Finding
from router.config.tree import Path
from router.placement.policies.chosen_policy import spec_of
from router.placement.policies.traffic_routes import DEFAULT, TrafficRoute, bounds_of

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MOST_CLASSES = 16


def check(config: Config) -> Iterator[Finding]:
    """Find unknown policies, wrong parameters, routes that can match nothing or name what is not there, and side
    channels without an address."""
    yield from _policy(config.policy, ("policy",))
    for name, policy in config.policies.items():
        if name == DEFAULT:
            yield ("policies", name), "default is the name of the section policy", "choose another name"
        yield from _policy(policy, ("policies", name))
    yield from _routes(config)
    yield from _classes(config)
    between_workers = config.handover.pulls or config.handover.connector == OffloadingPeer.name
    for index, worker in enumerate(config.workers if between_workers else ()):
        label = worker.labels.get(PEER_LABEL)
        if label is not None and labelled_address(label, "") is None:
            problem = f"the label {PEER_LABEL} is {label!r}, which is no port and no HOST:PORT"
            yield ("workers", index, "labels", PEER_LABEL), problem, "write the port of the worker's side channel"


def _classes(config: Config) -> Iterator[Finding]:
    """Find classes that are named and not there, floors that leave nothing, and what does not go with classes."""
    known = ", ".join(config.classes) or "none"
    for name in config.classes:
        if not _NAME.fullmatch(name):
            yield ("classes", name), f"{name!r} is no name of a class", "write lower-case letters, digits, - and _"
    tiers: dict[str, str] = {}
    for name, tier in ((name, tier) for name, one in config.classes.items() for tier in one.service_tiers):
        if tiers.setdefault(tier, name) != name:
            problem = f"the service tier {tier} is that of the class {tiers[tier]}, too"
            yield ("classes", name, "service_tiers"), problem, "name each tier in one class"
    if sum(one.floor for one in config.classes.values()) >= 1.0:
        yield ("classes",), "the floors add up to 1 or more, which leaves nothing", "make them smaller"
    if config.classes and (config.handover.connector or config.handover.pulls):
        yield ("classes",), "classes do not go with KV handover or pulls", "remove one of the two"
    if len(config.classes) > _MOST_CLASSES:
        yield ("classes",), f"there are more than {_MOST_CLASSES} classes", "remove some: each has metrics of its own"
    named: list[tuple[Path, str]] = [
        (("routes", index, "request_class"), route.request_class)
        for index, route in enumerate(config.routes)
        if route.request_class is not None
    ]
    named += [(("tenants", tenant, "classes"), name) for tenant, one in config.tenants.items() for name in one.classes]
    for place, name in named:
        if name not in config.classes:
            yield place, f"no class is called {name}", f"write one of `classes` ({known})"


def _policy(policy: PolicyConfig, section: Path) -> Iterator[Finding]:
    try:
        build_policy(spec_of(policy), Random(policy.seed))
    except PolicyError as error:
        yield (*section, *error.place), str(error).removesuffix(f"; {error.fix}"), error.fix


def _routes(config: Config) -> Iterator[Finding]:
    names: dict[str, int] = {}
    for index, route in enumerate(config.routes):
        place: Path = ("routes", index)
        if route.name in names:
            problem = f"routes {names[route.name]} and {index} are both called {route.name}"
            yield (*place, "name"), problem, "give each route a name of its own"
        names.setdefault(route.name, index)
        wrong = list(_conditions(route, place))
        yield from wrong
        yield from _deciders(route, place, config.policies)
        if not wrong:
            yield from _order(route, place, last=index == len(config.routes) - 1)


def _conditions(route: RouteConfig, place: Path) -> Iterator[Finding]:
    for key in ("prompt_tokens", "priority"):
        text = getattr(route.match, key)
        try:
            if text is not None:
                bounds_of(text)
        except ValueError as error:
            yield (*place, "match", key), str(error), 'write a comparison such as ">32000" or "1000-8000"'
    for name in route.match.header:
        if not name.isascii() or any(mark in name for mark in " :\r\n\t") or not name:
            yield (
                (*place, "match", "header", name),
                f"{name!r} is not the name of a header",
                "write it without the colon",
            )


def _deciders(route: RouteConfig, place: Path, policies: Mapping[str, PolicyConfig]) -> Iterator[Finding]:
    known = (DEFAULT, *policies)
    if route.policy is not None and route.split:
        yield (*place, "split"), "policy and split are both set", "remove one of the two"
    if route.policy is not None and route.policy not in known:
        yield (*place, "policy"), f"no policy is called {route.policy}", f"write one of {', '.join(known)}"
    for name in route.split:
        if name not in known:
            yield (*place, "split", name), f"no policy is called {name}", f"write one of {', '.join(known)}"
    for index, name in enumerate(route.shadow):
        if name not in known and name not in policy_names():
            fix = f"write one of {', '.join((*known, *policy_names()))}"
            yield (*place, "shadow", index), f"no policy and no rule is called {name}", fix
        elif name not in known:
            for _, problem, fix in _policy(PolicyConfig(rule=name), place):
                yield (*place, "shadow", index), problem, fix
    if len(set(route.shadow)) < len(route.shadow):
        yield (*place, "shadow"), "a shadow policy is named twice", "name each one once"


def _order(route: RouteConfig, place: Path, *, last: bool) -> Iterator[Finding]:
    matches_all = TrafficRoute(route).matches_all
    if matches_all and not last:
        problem = f"route {route.name} matches every request, so that no later route is used"
        yield place, problem, "move it to the end, or write a match"
    if last and not matches_all:
        problem = f"the last route, {route.name}, does not match every request"
        yield (*place, "match"), problem, "remove its match, or add a route without one"
