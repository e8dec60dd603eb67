"""Check the settings of keys, tokens, tenants, their limits and TLS."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from functools import partial

from router.config.model import STRUCK_OUT, Config, WorkerTlsConfig
from router.config.problems import Finding, is_host
from router.config.tree import Path
from router.security.file_problem import UnusableFileError
from router.security.keys import problems_of as key_problems
from router.security.tenancy import problems_of as tenancy_problems
from router.security.tenancy import warnings as tenancy_warnings
from router.security.tls import serving_tls, worker_context
from router.security.token import TokenSettings, admin_tokens


def check(config: Config) -> Iterator[Finding]:
    """Find mistakes in auth, admin_token, tenants, tls, admin_tls and worker_tls."""
    yield from _keys(config)
    yield from _token(config)
    yield from tenancy_problems(config)
    yield from _tls(config)
    yield from _worker_tls(config.worker_tls)


def _keys(config: Config) -> Iterator[Finding]:
    for path, problem, fix in key_problems(config.auth):
        yield ("auth", *path), f"auth.{problem}" if path[0] == "api_keys" else problem, fix
    if config.auth.isolation_secret == STRUCK_OUT:
        problem = f"auth.isolation_secret is {STRUCK_OUT}, which stands for one that is not shown"
        yield ("auth", "isolation_secret"), problem, "write the secret"


def _token(config: Config) -> Iterator[Finding]:
    if config.admin_token is not None and config.admin_token_file is not None:
        yield ("admin_token",), "admin_token and admin_token_file are both set", "remove one of the two"
    elif config.admin_token == STRUCK_OUT:
        problem = f"admin_token is {STRUCK_OUT}, which stands for one that is not shown"
        yield ("admin_token",), problem, "write the token"
    else:
        yield from _usable((), lambda: admin_tokens(config))


def _tls(config: Config) -> Iterator[Finding]:
    for name in ("tls", "admin_tls"):
        section = getattr(config, name)
        for key in ("key_file", "client_ca_file"):
            if section.cert_file is None and getattr(section, key) is not None:
                yield (name, key), f"{name}.{key} is set, and no {name}.cert_file", f"write {name}.cert_file, too"
        yield from _usable((name,), partial(serving_tls, section))


def _worker_tls(section: WorkerTlsConfig) -> Iterator[Finding]:
    if section.key_file is not None and section.cert_file is None:
        problem = "worker_tls.key_file is set, and no worker_tls.cert_file"
        yield ("worker_tls", "key_file"), problem, "write worker_tls.cert_file, too"
    if section.server_name is not None and not is_host(section.server_name):
        yield ("worker_tls", "server_name"), f"{section.server_name!r} is not a host name", "write a name alone"
    if not section.verify and (section.ca_file is not None or section.server_name is not None):
        problem = "worker_tls.verify is false, so that nothing is checked against ca_file or server_name"
        yield ("worker_tls", "verify"), problem, "remove it"
    if section.ca_file is not None or section.cert_file is not None:
        yield from _usable(("worker_tls",), partial(worker_context, section))


def _usable(section: Path, use: Callable[[], object]) -> Iterator[Finding]:
    try:
        use()
    except UnusableFileError as error:
        yield (*section, error.setting), error.problem, error.fix


def warnings(config: Config) -> Iterator[str]:
    """Name settings that work but leave something open."""
    if not _loopback(config.admin_host) and not TokenSettings.of(config).given:
        yield (
            f"the admin port listens on {config.admin_host} without a token: anyone who reaches it "
            "can change the fleet; set admin_token_file, or admin_host to 127.0.0.1"
        )
    if not config.worker_tls.verify:
        yield (
            "worker_tls.verify is false: workers' certificates are not checked, so anyone on the network path can "
            "read and change the traffic; set worker_tls.ca_file instead"
        )
    yield from tenancy_warnings(config)


def _loopback(host: str) -> bool:
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"
