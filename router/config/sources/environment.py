"""``WARMROUTE_*`` variables: ``WARMROUTE_TIMEOUTS__CONNECT_S=1`` is ``timeouts.connect_s``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from router.config.problems import Problem, closest
from router.config.schema import settings, type_at
from router.config.sources.text import from_text
from router.config.tree import Located, insert

PREFIX = "WARMROUTE_"
CONFIG_FILE = "WARMROUTE_CONFIG"
"""The variable that names the settings file if ``--config`` does not."""

# Kubernetes puts these into every container of a namespace with a Service called "warmroute" or "warmroute-...".
_SERVICE_LINK = re.compile(r"WARMROUTE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def variable(path: tuple[str, ...]) -> str:
    """Return the variable of the setting at `path`."""
    return PREFIX + "__".join(path).upper()


def read_environment(env: Mapping[str, str], problems: list[Problem]) -> Located:
    """Return the settings in `env`; an empty variable counts as not set."""
    tree = Located({}, "environment")
    for name in sorted(filter(_ours, env)):
        if not env[name] or _service_link(name, env[name]):
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        kind = type_at(path)
        if kind is None or not name.isupper():
            problems.append(Problem(name, "unknown variable", _fix(name)))
        else:
            insert(tree, path, from_text(kind, env[name], name))
    return tree


def _ours(name: str) -> bool:
    return name.upper().startswith(PREFIX) and name != CONFIG_FILE


def _service_link(name: str, value: str) -> bool:
    linked = _SERVICE_LINK.fullmatch(name) is not None
    return linked or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(value) is not None)


def _fix(name: str) -> str:
    known = [variable(path) for path, _ in settings()]
    meant = closest(name.upper(), [*known, CONFIG_FILE])
    return f"did you mean {meant}?" if meant else "unset it, or see docs/warmroute.sample.yaml for every setting"
