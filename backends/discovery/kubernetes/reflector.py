"""Follow one collection of objects by list and watch.

The rules are those of Kubernetes' API concepts (Efficient detection of changes): list in pages, watch from the version
of the list, take bookmarks as versions only, and list again after 410, which is an HTTP status or an event of a watch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from random import uniform

from backends.discovery.kubernetes.api import ApiServer, ApiServerError, ExpiredError, Json, decode, status_error

PAGE = 500
WATCH_S = (290.0, 350.0)
"""How long the server keeps a watch open, drawn at random so that all watches do not begin together."""
SILENT_S = 400.0
"""After this time without an event or a bookmark the collection is listed again. After a restore of etcd the server may
be silent for ever about a version that it does not know."""
MOST_OBJECTS = 40_000
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
STEADY_S = 1.0
"""A watch that stays open for so long is no reason for a pause before the next one."""
_MOST_DIGITS = 40

Key = tuple[str, str]
"""Namespace and name."""


class Reflector:
    """A copy of the objects of one collection. `changed` is called after each list and change, and `failed` with the
    reason when the server does not answer, in which case the copy stays.
    """

    def __init__(
        self,
        api: ApiServer,
        path: str,
        selectors: Mapping[str, str],
        changed: Callable[[], None],
        failed: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._path = path
        self._selectors = dict(selectors)
        self._changed = changed
        self._failed = failed
        self._now_s = now_s
        self.objects: dict[Key, Json] = {}
        self.listed = False
        self._gone: dict[Key, int] = {}
        """Versions at which objects were deleted since the last list: an older event about one comes too late."""
        self._version: str | None = None
        """The version from which to watch; None: list first."""
        self._heard_s = 0.0
        self._opened = False

    async def run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began_s, self._opened = self._now_s(), False
            asked_s = await self._round(began_s)
            if self._opened and self._now_s() - began_s >= STEADY_S:
                pause_s = FIRST_PAUSE_S
                continue
            await asyncio.sleep(max(asked_s, pause_s * uniform(0.5, 1.0)))
            pause_s = min(STEADY_S if self._opened else LONGEST_PAUSE_S, 2 * pause_s)

    async def _round(self, now_s: float) -> float:
        """List if that is needed, then watch until the watch ends. Return the pause that the server asks for."""
        try:
            if self._version is None or now_s - self._heard_s >= SILENT_S:
                await self._list()
            await self._watch()
        except ExpiredError:
            self._version = None
        except ApiServerError as error:
            if not self._opened:  # a watch that was cut goes on from its version
                self._failed(str(error))
            return error.pause_s
        return 0.0

    async def _list(self) -> None:
        found: dict[Key, Json] = {}
        query = {**self._selectors, "limit": str(PAGE)}
        while True:
            page = await self._api.get(self._path, query)
            found |= {key_of(item): _slim(item) for item in page.get("items") or () if isinstance(item, dict)}
            if len(found) > MOST_OBJECTS:
                raise ApiServerError(f"{self._path}: more than {MOST_OBJECTS} objects")
            metadata = _metadata(page)
            if not metadata.get("continue"):
                break
            query["continue"] = str(metadata["continue"])
        self.objects, self._gone, self.listed = found, {}, True
        self._version, self._heard_s = str(metadata.get("resourceVersion") or "0"), self._now_s()
        self._changed()

    async def _watch(self) -> None:
        query = {
            **self._selectors,
            "watch": "1",
            "resourceVersion": self._version or "0",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(uniform(*WATCH_S))),
        }
        async with self._api.lines(self._path, query) as lines:
            self._opened = True
            self._changed()
            async for batch in lines:
                changes = [self._event(decode(line)) for line in batch if line.strip()]
                if any(changes):
                    self._changed()

    def _event(self, event: Json) -> bool:
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            raise ApiServerError(f"{self._path}: an event without an object")
        if kind == "ERROR":
            raise status_error(item, self._path)
        version = str(_metadata(item).get("resourceVersion") or "")
        self._heard_s = self._now_s()
        if _number(version) >= _number(self._version or ""):
            self._version = version or self._version
        return kind in ("ADDED", "MODIFIED", "DELETED") and self._take(str(kind), item, _number(version))

    def _take(self, kind: str, item: Json, version: int) -> bool:
        """Apply one event. Return whether it changed anything: events may come twice, or too late."""
        key = key_of(item)
        known = self.objects.get(key)
        latest = max(version_of(known) if known is not None else -1, self._gone.get(key, -1))
        if version < latest or (version == latest and (known is None or kind != "DELETED")):
            return False
        if kind == "DELETED":
            self.objects.pop(key, None)
            self._gone[key] = version
            if len(self._gone) > MOST_OBJECTS:
                self._gone.clear()
            return known is not None
        if known is None and len(self.objects) >= MOST_OBJECTS:
            raise ApiServerError(f"{self._path}: more than {MOST_OBJECTS} objects")
        self.objects[key] = _slim(item)
        return True


def key_of(item: Json) -> Key:
    metadata = _metadata(item)
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def version_of(item: Json) -> int:
    """Return the version of an object as a number. Since Kubernetes 1.35 versions may be compared so."""
    return _number(str(_metadata(item).get("resourceVersion") or ""))


def _metadata(item: Json) -> Json:
    metadata = item.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _slim(item: Json) -> Json:
    """Return the object without the record of who wrote which field, which is often its largest part."""
    _metadata(item).pop("managedFields", None)
    return item


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdecimal() and len(version) <= _MOST_DIGITS else 0
