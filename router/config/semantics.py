"""Mistakes that types cannot see: addresses, files, rules that hold between settings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path as FilePath
from random import Random
from urllib.parse import unquote

from backends.worker import parse_endpoint
from policies.phases import DECODE, LABEL, PREFILL
from policies.registry import PolicyError, build_policy
from router.config.model import STRUCK_OUT, Config, ModelConfig, TimeoutsConfig, WorkerConfig, WorkerTlsConfig
from router.config.tree import Path
from router.gateway.http.routes import forbidden
from router.process.children.child_config import count_of
from router.security.file_problem import UnusableFileError
from router.security.keys import problems_of
from router.security.server_tls import serving_tls
from router.security.tenancy import problems_of as tenancy_problems
from router.security.token import TokenSettings, admin_token
from router.security.worker_tls import worker_context

Finding = tuple[Path, str, str]
"""Where in the settings, what is wrong, what to write instead."""

_UNIX_PATH_BYTES = 107
"""What fits in sockaddr_un on Linux, less its closing zero."""
_SUFFIX_BYTES = 8
"""Room for what a socket's path ends in before it is put in its place."""
_EVENT_ADDRESS = re.compile(r"tcp://[^\s/]+:\d{1,5}|ipc://.+")
_ORIGIN = re.compile(r"https?://[^\s/]+")
_PATH = re.compile(r"/[!$-)+->@-~]*")
"""Printable ASCII without quotes, ``#``, ``*`` and ``?``."""
_AMBIGUOUS = re.compile(r"//|(?<=/)\.\.?(?=/|$)|\\|[\x00-\x20\x7f]")
"""What a worker, or a proxy before it, may take for another path than the one written."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_HOST_NAME = re.compile(r"[^\s/:]+|\[?[0-9A-Fa-f:.]+\]?")


def findings(config: Config) -> Iterator[Finding]:
    """Everything wrong with `config`, in the order of its settings."""
    for check in _CHECKS:
        yield from check(config)


def _listening(config: Config) -> Iterator[Finding]:
    for key in ("host", "admin_host"):
        host = getattr(config, key)
        if not _HOST_NAME.fullmatch(host) or not _encodable(host):
            yield (key,), f"{key} is {host!r}", "write an address or a host name, without scheme and port"
    if config.uds is None and config.port == config.admin_port != 0:
        yield ("admin_port",), f"port and admin_port are both {config.port}", "write two different ports"
    if config.uds is not None:
        yield from _unix_socket("uds", config.uds, _UNIX_PATH_BYTES)
    if config.takeover is not None:
        yield from _unix_socket("takeover", config.takeover, _UNIX_PATH_BYTES - _SUFFIX_BYTES)
        if config.processes != 1:
            problem = "takeover hands over one process's place, and processes asks for several"
            yield ("takeover",), problem, "leave one of the two out; systemd's socket activation works with both"
        if config.takeover == config.uds:
            yield ("takeover",), "takeover and uds are the same path", "write two different paths"
    processes, at_once = count_of(config), config.limits.max_concurrent_requests
    if 0 < at_once < processes:
        problem = f"limits.max_concurrent_requests is {at_once}, which {processes} processes cannot share out"
        yield ("limits", "max_concurrent_requests"), problem, "raise it, or lower processes"
    for index, name in enumerate(config.admin_hosts):
        if not _HOST_NAME.fullmatch(name):
            yield ("admin_hosts", index), f"{name!r} is not a host name", "write the name alone, as in router.example"


def _keys(config: Config) -> Iterator[Finding]:
    for path, problem, fix in problems_of(config.auth):
        yield ("auth", *path), f"auth.{problem}" if path[0] == "api_keys" else problem, fix
    if config.admin_token is not None and config.admin_token_file is not None:
        yield ("admin_token",), "admin_token and admin_token_file are both set", "remove one of the two"
    elif config.admin_token == STRUCK_OUT:
        problem = f"admin_token is {STRUCK_OUT}, which stands for one that is not shown"
        yield ("admin_token",), problem, "write the token"
    else:
        yield from _usable((), lambda: admin_token(TokenSettings(config.admin_token, config.admin_token_file)))


def _tenants(config: Config) -> Iterator[Finding]:
    yield from tenancy_problems(config)
    if config.auth.isolation_secret == STRUCK_OUT:
        problem = f"auth.isolation_secret is {STRUCK_OUT}, which stands for one that is not shown"
        yield ("auth", "isolation_secret"), problem, "write the secret"


def _tls(config: Config) -> Iterator[Finding]:
    for name in ("tls", "admin_tls"):
        section = getattr(config, name)
        for key in ("key_file", "client_ca_file"):
            if section.cert_file is None and getattr(section, key) is not None:
                yield (name, key), f"{name}.{key} is set, and no {name}.cert_file", f"write {name}.cert_file, too"
        yield from _usable((name,), partial(serving_tls, section))
    if config.uds is not None and config.tls.cert_file is not None:
        yield ("tls", "cert_file"), "tls is set, and a Unix socket (uds) has none", "remove one of the two"
    yield from _worker_tls(config.worker_tls)


def _worker_tls(section: WorkerTlsConfig) -> Iterator[Finding]:
    if section.key_file is not None and section.cert_file is None:
        problem = "worker_tls.key_file is set, and no worker_tls.cert_file"
        yield ("worker_tls", "key_file"), problem, "write worker_tls.cert_file, too"
    if section.server_name is not None and not _HOST_NAME.fullmatch(section.server_name):
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


def _encodable(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _unix_socket(key: str, path: str, most_bytes: int) -> Iterator[Finding]:
    size_bytes = len(path.encode(errors="replace"))
    if not path or not path.isprintable():
        yield (key,), f"{path!r} is not a path", "write a socket's path"
    elif not FilePath(path).absolute().parent.is_dir():
        yield (key,), f"the folder of {path!r} does not exist", "write a path in an existing folder"
    elif size_bytes > most_bytes:
        yield (key,), f"the path has {size_bytes} bytes", f"write one of at most {most_bytes}"


def _workers(config: Config) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for index, worker in enumerate(config.workers):
        path = ("workers", index)
        found = list(worker_findings(worker, path))
        yield from found
        if any(where == (*path, "url") for where, _, _ in found):
            continue
        authority = parse_endpoint(worker.url).authority
        first = seen.setdefault(authority, index)
        if first != index:
            yield (*path, "url"), f"{authority} is a worker already (workers[{first}])", "remove one of the two"


def worker_findings(worker: WorkerConfig, path: Path) -> Iterator[Finding]:
    """What is wrong with one worker's settings, wherever they came from."""
    if worker.api_key == STRUCK_OUT:
        yield (*path, "api_key"), f"api_key is {STRUCK_OUT}, which stands for a key that is not shown", "write the key"
    try:
        parse_endpoint(worker.url)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        yield (*path, "url"), problem, fix
    yield from _events(worker, (*path, "kv_events"))
    lane = worker.labels.get(LABEL)
    if lane not in (None, PREFILL, DECODE):
        yield (*path, "labels", LABEL), f"{lane!r} is no lane", f"write {PREFILL} or {DECODE}, or leave it out"


def _events(worker: WorkerConfig, path: Path) -> Iterator[Finding]:
    if worker.kv_events is None:
        return
    addresses = {"endpoint": worker.kv_events.endpoint, "replay_endpoint": worker.kv_events.replay_endpoint}
    for key, address in addresses.items():
        if address is not None and not _EVENT_ADDRESS.fullmatch(address):
            yield (*path, key), f"{address!r} is not a ZeroMQ address", "write tcp://HOST:PORT"


def _prompts(config: Config) -> Iterator[Finding]:
    if config.tokenizer is not None and not _tokenizer(FilePath(config.tokenizer)):
        yield ("tokenizer",), f"no tokenizer.json at {config.tokenizer!r}", "write its path or that of its folder"
    if config.model_dir is not None:
        yield from _model_dir(config.model_dir, ("model_dir",), config.tokenizer is not None)
    for name, model in config.models.items():
        yield from _model(model, ("models", name))


def _tokenizer(path: FilePath) -> bool:
    return path.is_file() or (path / "tokenizer.json").is_file()


def _model(model: ModelConfig, path: Path) -> Iterator[Finding]:
    if model.dir is not None:
        yield from _model_dir(model.dir, (*path, "dir"), False)
    if model.chat_template is not None and not FilePath(model.chat_template).is_file():
        yield (*path, "chat_template"), f"no file {model.chat_template!r}", "write the path of a Jinja chat template"


def _model_dir(folder: str, path: Path, tokenizer_elsewhere: bool) -> Iterator[Finding]:
    if not FilePath(folder).is_dir():
        yield path, f"no folder {folder!r}", "write a folder with tokenizer.json and tokenizer_config.json"
        return
    needed = ["tokenizer_config.json"] if tokenizer_elsewhere else ["tokenizer.json", "tokenizer_config.json"]
    if missing := [name for name in needed if not (FilePath(folder) / name).is_file()]:
        yield path, f"{folder!r} has no {' and no '.join(missing)}", "write the folder that vllm serves the model from"


def _policy(config: Config) -> Iterator[Finding]:
    try:
        build_policy(config.policy.name, config.policy.params, Random(config.policy.seed))
    except PolicyError as error:
        place = ("policy", "name") if error.parameter is None else ("policy", "params", error.parameter)
        yield place, str(error).removesuffix(f"; {error.fix}"), error.fix


def _timeouts(config: Config) -> Iterator[Finding]:
    limits, defaults = config.timeouts, TimeoutsConfig()
    for key in ("connect_s", "upstream_head_s", "first_event_s", "stream_idle_s", "queue_s"):
        value = getattr(limits, key)
        # Whoever lowers total_s alone means it for everything; only what was asked for can contradict it.
        if value > limits.total_s and value != getattr(defaults, key):
            problem = f"timeouts.{key} ({value:g}) is above timeouts.total_s ({limits.total_s:g})"
            yield ("timeouts", key), problem, "write a smaller one, or a larger total_s"


def _limits(config: Config) -> Iterator[Finding]:
    one, all_ = config.limits.max_body_bytes, config.limits.max_buffered_body_bytes
    if isinstance(all_, int) and one > all_:
        problem = f"limits.max_body_bytes ({one}) is above limits.max_buffered_body_bytes ({all_})"
        yield ("limits", "max_body_bytes"), problem, "write a smaller one, or a larger max_buffered_body_bytes"


def _paths(config: Config) -> Iterator[Finding]:
    for index, extra in enumerate(config.extra_paths):
        path = ("extra_paths", index, "path")
        stem = extra.path.removesuffix("/*")
        if not _PATH.fullmatch(stem) and extra.path != "/*":
            yield path, f"{extra.path!r} is not a path", "write /PATH, or /PATH/* for all below it"
        elif ambiguous := _AMBIGUOUS.search(unquote(extra.path)):
            yield path, f"{extra.path!r} has {ambiguous[0]!r} in it", "write the path that it stands for"
        elif forbidden(stem):
            yield path, f"{extra.path} changes a worker and is never public", "remove it"
        yield from _methods(extra.methods, ("extra_paths", index, "methods"))


def _methods(methods: tuple[str, ...], path: Path) -> Iterator[Finding]:
    fix = f"write one or more of {', '.join(_METHODS)}"
    if not methods:
        yield path, "methods is empty", fix
    for method in methods:
        if method not in _METHODS:
            yield path, f"{method!r} is not a method that can be forwarded", fix


def _browsers(config: Config) -> Iterator[Finding]:
    for index, origin in enumerate(config.cors.allow_origins):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            yield ("cors", "allow_origins", index), f"{origin!r} is not an origin", 'write https://HOST[:PORT] or "*"'


def _proxies(config: Config) -> Iterator[Finding]:
    for index, text in enumerate(config.trusted_proxies):
        path = ("trusted_proxies", index)
        try:
            ipaddress.ip_network(text)
        except ValueError:
            yield path, f"{text!r} is not a network", f"write {_network(text)}"


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        return "it as in 10.0.0.0/8"


_CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _listening,
    _keys,
    _tenants,
    _tls,
    _workers,
    _prompts,
    _policy,
    _timeouts,
    _limits,
    _browsers,
    _paths,
    _proxies,
)
