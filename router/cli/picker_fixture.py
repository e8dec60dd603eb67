"""The options that say where a picker under test listens and what it knows, as a `Fixture`."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path

from router.config.problems import ConfigError, Problem
from router.picker.conformance.fixture import CaseProfile, Fixture, Patience, parse_endpoint

USUAL_PROFILES = (CaseProfile.CORE, CaseProfile.STREAMING)
_LONGEST_TIMEOUT_S = 600.0


def add_fixture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="HOST:PORT", help="where the picker listens for ext_proc")
    parser.add_argument("--tls", action="store_true", help="use TLS, with any certificate")
    parser.add_argument("--ca-file", metavar="FILE", type=Path, help="use TLS, with a certificate of this authority")
    parser.add_argument("--health", metavar="HOST:PORT", help="where health is served, if on another port")
    usual = f"cases to run (repeatable; default {' and '.join(USUAL_PROFILES)})"
    parser.add_argument("--profile", choices=list(CaseProfile), type=CaseProfile, action="append", help=usual)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="longest wait for an answer (default 5)")
    _add_pool(parser.add_argument_group("what the picker knows"))


def _add_pool(pool: argparse._ArgumentGroup) -> None:
    endpoint = "endpoint that may be picked (repeatable; name all)"
    pool.add_argument("--endpoint", metavar="IP:PORT", action="append", default=[], help=endpoint)
    prefill = "endpoint that only prefills (repeatable)"
    pool.add_argument("--prefill", metavar="IP:PORT", action="append", default=[], help=prefill)
    model = "model of the requests (default %(default)s)"
    pool.add_argument("--model", metavar="NAME", default="conformance", help=model)
    path = "path of the requests, which are chats (default %(default)s)"
    pool.add_argument("--path", default="/v1/chat/completions", help=path)
    pool.add_argument("--sheddable", metavar="NAME", default="", help="objective with a negative priority")
    pool.add_argument("--urgent", metavar="NAME", default="", help="objective with a positive priority")
    ignores = "the picker is set not to honour objectives of clients"
    pool.add_argument("--ignores-objectives", action="store_true", help=ignores)
    adapter = "adapter that only this endpoint has (repeatable)"
    pool.add_argument("--adapter", metavar="NAME=IP:PORT", action="append", default=[], help=adapter)
    rewrite = "model that a rewrite replaces, by weight (repeatable)"
    pool.add_argument("--rewrite", metavar="NAME=MODEL:WEIGHT", action="append", default=[], help=rewrite)


def read_fixture(arguments: argparse.Namespace) -> Fixture:
    """Return what the options say.

    Raises:
        ConfigError: an option is wrong.
    """
    return Fixture(
        target=_address("HOST:PORT", arguments.target),
        tls=arguments.tls or arguments.ca_file is not None,
        ca_file=_authority(arguments.ca_file),
        health=None if arguments.health is None else _address("--health", arguments.health),
        endpoints=_endpoints("--endpoint", arguments.endpoint),
        prefill=_endpoints("--prefill", arguments.prefill),
        model=arguments.model,
        path=arguments.path,
        sheddable=arguments.sheddable,
        urgent=arguments.urgent,
        ignores_objectives=arguments.ignores_objectives,
        adapters={name: _endpoint("--adapter", place) for name, place in _pairs("--adapter", arguments.adapter)},
        rewrites=_rewrites(arguments.rewrite),
        profiles=frozenset(arguments.profile or USUAL_PROFILES),
        patience=_patience(arguments.timeout),
    )


def wrong(place: str, problem: str, fix: str) -> ConfigError:
    return ConfigError([Problem(place, problem, fix)])


def _patience(timeout_s: float | None) -> Patience:
    if timeout_s is None:
        return Patience()
    if not 0.0 < timeout_s <= _LONGEST_TIMEOUT_S:
        raise wrong("--timeout", f"{timeout_s:g} is out of range", f"write seconds up to {_LONGEST_TIMEOUT_S:g}")
    return Patience(answer_s=timeout_s, case_s=max(Patience().case_s, 4 * timeout_s))


def _address(place: str, text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or "/" in text or not _is_port(port):
        raise wrong(place, f"{text!r} is no address", "write HOST:PORT, as in 127.0.0.1:9002")
    return text


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65_536


def _endpoints(option: str, texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_endpoint(option, text) for text in texts))


def _endpoint(option: str, text: str) -> str:
    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise wrong(option, str(error), "write IP:PORT, as in 10.0.0.5:8000 or [fd00::5]:8000") from None


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise wrong(option, f"{text!r} is not NAME=VALUE", f"write {option} NAME=VALUE")
        pairs.append((name, value))
    return pairs


def _rewrites(texts: Sequence[str]) -> dict[str, dict[str, int]]:
    rewrites: dict[str, dict[str, int]] = {}
    for name, target in _pairs("--rewrite", texts):
        model, _, weight = target.rpartition(":")
        if not model or not (weight.isascii() and weight.isdigit() and int(weight)):
            raise wrong("--rewrite", f"{target!r} is not MODEL:WEIGHT", f"write --rewrite {name}=MODEL:1")
        rewrites.setdefault(name, {})[model] = int(weight)
    return rewrites


def _authority(file: Path | None) -> Path | None:
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        raise wrong("--ca-file", f"{file}: {error.strerror or error}", "name a file of certificates in PEM") from None
    return file
