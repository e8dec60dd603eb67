"""Check the section `redis`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec

from router.config.model import STRUCK_OUT, Config, RedisConfig
from router.config.problems import Finding
from router.replicas.address import FORMS, parse_address
from router.replicas.connection import INSTALL, authorities
from router.security.file_problem import UnusableFileError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check(config: Config) -> Iterator[Finding]:
    section = config.redis
    if _NAME.fullmatch(section.fleet) is None:
        yield ("redis", "fleet"), f"redis.fleet is {section.fleet!r}", "write 1 to 64 letters, digits, and _ . -"
    for key in ("password", "sentinel_password"):
        if getattr(section, key) == STRUCK_OUT:
            problem = f"redis.{key} is {STRUCK_OUT}, which stands for one that is not shown"
            yield ("redis", key), problem, "write the password"
    if section.url is None:
        yield from _without_url(section)
    else:
        yield from _url(section, section.url)


def _without_url(section: RedisConfig) -> Iterator[Finding]:
    for key in ("username", "password", "sentinel_password", "ca"):
        if getattr(section, key) is not None:
            yield ("redis", key), f"redis.{key} is set, and no redis.url", "write redis.url, too"


def _url(section: RedisConfig, url: str) -> Iterator[Finding]:
    try:
        address = parse_address(url)
    except ValueError as error:
        yield ("redis", "url"), f"redis.url cannot be used: {error}", f"write {FORMS}"
        return
    if find_spec("redis") is None:
        yield ("redis", "url"), "redis.url is set, and the package redis is not installed", INSTALL
    if section.username is not None and section.password is None:
        yield ("redis", "username"), "redis.username is set, and no redis.password", "write redis.password, too"
    if section.sentinel_password is not None and address.form != "sentinel":
        yield ("redis", "sentinel_password"), "redis.url names no sentinels", "remove redis.sentinel_password"
    if section.ca is None:
        return
    if not address.tls:
        yield ("redis", "ca"), "redis.ca is set, and redis.url uses no TLS", "write redis.url with rediss"
    try:
        authorities(section)
    except UnusableFileError as error:
        yield ("redis", error.setting), error.problem, error.fix
