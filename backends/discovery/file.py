"""Workers in a file, which another program writes: a list of workers, the `file_sd` format of Prometheus, or the
endpoints file of llm-d."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from backends.discovery import llmd_endpoints
from backends.discovery.fields import described, port_of
from backends.discovery.registration import Registration
from backends.discovery.report import SourceReport, Workers
from backends.foreign_json import read_json
from backends.worker import parse_endpoint

MOST_BYTES = 16 << 20
LOOK_S = 0.1
"""Interval of the checks. A changed file is read at the next check, if it stayed the same until then."""
_DEEPEST = 20
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader is ten times faster."""
_SD_PREFIX = "warmroute_"
_SCHEME = "__scheme__"
_Signature = tuple[int, ...] | None


class FileSource:
    """Follow one file. A file that is missing or has a mistake is a failure, and the last answer stays."""

    kind = "file"

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def run(self, report: SourceReport) -> None:
        read: _Signature | str = ""
        seen = self._signature()
        while True:
            now = self._signature()
            if now == seen and now != read:
                read = now
                await self._read(report)
            seen = now
            await asyncio.sleep(LOOK_S)

    async def _read(self, report: SourceReport) -> None:
        try:
            report.answer(await asyncio.to_thread(read_workers, self._path))
        except OSError as error:
            report.failed(f"{self._path}: {error.strerror}")
        except ValueError as error:
            report.failed(f"{self._path}: {error}")

    def _signature(self) -> _Signature:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_workers(path: Path) -> Workers:
    """Return the workers of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it has a mistake; the message says which.
    """
    with path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    value = _parsed(text)
    if not llmd_endpoints.is_endpoints_file(value):
        return by_id(_entries(value))
    if len(text) > llmd_endpoints.MOST_BYTES:
        raise ValueError(f"more than {llmd_endpoints.MOST_BYTES} bytes, the most of an endpoints file of llm-d")
    return by_id(map(_checked, llmd_endpoints.endpoints_of(value)))


def by_id(entries: Iterable[Registration]) -> Workers:
    """Return workers by id.

    Raises:
        ValueError: two have one address.
    """
    workers: dict[str, Registration] = {}
    for worker in entries:
        if workers.setdefault(worker.worker_id, worker) is not worker:
            raise ValueError(f"{worker.worker_id} is named twice")
    return workers


def _parsed(text: bytes) -> Any:
    try:
        return read_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        _check_depth(text)
        return yaml.load(text, Loader=_SAFE_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"neither JSON nor YAML: {' '.join(str(error).split())[:200]}") from None


def _check_depth(text: bytes) -> None:
    """Refuse nesting that would exhaust the stack of libyaml, which does not check that itself."""
    depth = 0
    for event in yaml.parse(text, Loader=_SAFE_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")


def _entries(value: Any) -> Iterator[Registration]:
    listed = value.get("workers") if isinstance(value, dict) else value
    if not isinstance(listed, list):
        raise ValueError("not a list of workers; write a list, or a mapping with the list `workers`")
    for number, entry in enumerate(listed):
        try:
            yield from _workers_of(entry)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            raise ValueError(f"entry {number}: {error}") from None


def _workers_of(entry: Any) -> Iterator[Registration]:
    if isinstance(entry, dict) and "targets" in entry:
        yield from _targets_of(entry)
        return
    if isinstance(entry, str):
        entry = {"url": entry}
    worker = msgspec.convert(entry, _Entry)
    parse_endpoint(worker.url)
    yield Registration(**{name: getattr(worker, name) for name in Registration.__struct_fields__})


class _Entry(Registration, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker as people write it: a key that is not known is a mistake."""


class _Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    targets: list[str]
    labels: dict[str, str] = {}


def _targets_of(entry: dict[str, Any]) -> Iterator[Registration]:
    group = msgspec.convert(entry, _Targets)
    fields, labels = _fields_of(group.labels)
    for target in group.targets:
        host, _, port = target.rpartition(":")
        yield _checked(described(host.strip("[]"), port_of(f"the port of {target[:100]!r}", port), fields, labels))


def _fields_of(labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fields that labels of Prometheus' format carry, and the labels that stay."""
    fields = {
        name.removeprefix(_SD_PREFIX).replace("_", "-"): text
        for name, text in labels.items()
        if name.startswith(_SD_PREFIX)
    }
    if _SCHEME in labels:
        fields["scheme"] = labels[_SCHEME]
    return fields, {name: text for name, text in labels.items() if not name.startswith((_SD_PREFIX, "__"))}


def _checked(worker: Registration) -> Registration:
    parse_endpoint(worker.url)
    return worker
