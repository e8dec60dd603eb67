"""The part of Kubernetes' API server that a reflector sees, on one socket, with faults on call.

It lists with selectors, `limit` and `continue`, and watches from a version out of a history, with bookmarks. Versions
are of the whole server, as with etcd. A test may cut watches, forget the history (410), refuse calls, freeze, and send
events of its own.
"""

import asyncio
import copy
import json
from urllib.parse import parse_qs, urlsplit

EXPIRED = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}


class ApiServerStub:
    def __init__(self, *, watch_410="event") -> None:
        self.objects: dict[str, dict[tuple[str, str], dict]] = {}
        """Objects by the collection's name, such as pods, then by namespace and name."""
        self.version = 100
        self.history: list[tuple[int, str, str, dict]] = []
        self.compacted = 0
        """Watches from before this version are expired."""
        self.token: str | None = None
        self.refusals: list[tuple[int, dict[str, str]]] = []
        """Statuses of the next calls, with headers."""
        self.calls: list[dict] = []
        self.watch_410 = watch_410
        self.page_expires = 0
        self.thawed = asyncio.Event()
        """Not set: no call is answered."""
        self.thawed.set()
        self._watches: set[asyncio.StreamWriter] = set()
        self._wake = asyncio.Event()
        self._server = None
        self._open: set[asyncio.Task] = set()

    async def start(self, port=0):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self):
        self._server.close()
        self.cut()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    # what a test does

    def put(self, kind, item, namespace="default"):
        """Add or change an object, which gets a version."""
        item = copy.deepcopy(item)
        item["metadata"]["namespace"] = namespace
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        held = self.objects.setdefault(kind, {})
        before = held.get((namespace, item["metadata"]["name"]))
        held[namespace, item["metadata"]["name"]] = item
        self._record("ADDED" if before is None else "MODIFIED", kind, item, before)
        return item

    def delete(self, kind, name, namespace="default"):
        item = copy.deepcopy(self.objects[kind].pop((namespace, name)))
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._record("DELETED", kind, item, item)

    def _record(self, event, kind, item, before):
        self.history.append((self.version, kind, event, item, before))
        self._woken()

    def send(self, event, item):
        """Send an event that the history does not have to every open watch."""
        for writer in self._watches:
            _chunk(writer, json.dumps({"type": event, "object": item}) + "\n")

    def bookmark(self):
        self.send("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def compact(self):
        """Forget the history: whoever watches from an earlier version gets 410."""
        self.compacted = self.version
        self.history.clear()

    def cut(self):
        for writer in list(self._watches):
            writer.transport.abort()
        self._woken()

    @property
    def watches(self):
        return len(self._watches)

    def asked(self, **query):
        return [call for call in self.calls if query.items() <= call.items()]

    # the server

    def _woken(self):
        self._wake.set()
        self._wake = asyncio.Event()

    async def _connected(self, reader, writer):
        task = asyncio.current_task()
        self._open.add(task)
        try:
            while head := await _head(reader):
                await self._answer(head, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, head, writer):
        target, headers = head
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.calls.append({"path": parts.path, **query})
        await self.thawed.wait()
        if self.refusals:
            status, further = self.refusals.pop(0)
            return _json(writer, status, {"kind": "Status", "code": status, "message": "refused"}, further)
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            return _json(writer, 401, {"kind": "Status", "code": 401, "message": "Unauthorized"})
        *_, namespace, kind = parts.path.split("/")
        if kind not in self.objects:
            return _plain(writer, 404, "404 page not found")
        if query.get("watch") == "1":
            return await self._watch(writer, kind, namespace, query)
        return self._list(writer, kind, namespace, query)

    def _list(self, writer, kind, namespace, query):
        items = [
            item
            for (where, _), item in sorted(self.objects[kind].items())
            if where == namespace and _selected(item, query)
        ]
        start = 0
        if "continue" in query:
            version, _, at = query["continue"].partition(":")
            start = int(at)
            if self.page_expires or int(version) < self.compacted:
                self.page_expires = max(0, self.page_expires - 1)
                return _json(writer, 410, {**EXPIRED, "metadata": {"continue": f"{self.version}:{start}"}})
        end = start + int(query.get("limit", len(items) or 1))
        metadata = {"resourceVersion": str(self.version)}
        if end < len(items):
            metadata["continue"] = f"{self.version}:{end}"
        return _json(writer, 200, {"kind": "List", "metadata": metadata, "items": items[start:end]})

    async def _watch(self, writer, kind, namespace, query):
        sent = int(query["resourceVersion"])
        if sent < self.compacted and self.watch_410 == "status":
            return _json(writer, 410, EXPIRED)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if sent < self.compacted:
            _chunk(writer, json.dumps({"type": "ERROR", "object": EXPIRED}) + "\n")
            writer.write(b"0\r\n\r\n")
            return None
        self._watches.add(writer)
        try:
            while not writer.transport.is_closing():
                wake = self._wake
                for version, its, event, item, before in self.history:
                    if version > sent and its == kind and item["metadata"]["namespace"] == namespace:
                        self._event(writer, event, item, before, query)
                sent = max(sent, self.version)
                await wake.wait()
        finally:
            self._watches.discard(writer)
        raise ConnectionError

    @staticmethod
    def _event(writer, event, item, before, query):
        """Send an event as a selector sees it: an object that leaves the selection is deleted."""
        now, was = _selected(item, query), before is not None and _selected(before, query)
        if event != "DELETED" and now != was:
            event = "ADDED" if now else "DELETED"
        if now or was:
            text = json.dumps({"type": event, "object": item}) + "\n"
            _chunk(writer, text[:20])  # a line may come in pieces
            _chunk(writer, text[20:])


def _selected(item, query):
    labels = item["metadata"].get("labels", {})
    wanted = [one.split("=") for one in query.get("labelSelector", "").split(",") if one]
    field = query.get("fieldSelector", "")
    named = not field or field == f"metadata.name={item['metadata']['name']}"
    return named and all(labels.get(name) == value for name, value in wanted)


async def _head(reader):
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = text.split("\r\n")
    pairs = [line.split(": ", 1) for line in lines if ": " in line]
    headers = {name.lower(): value for name, value in pairs}
    return first.split(" ")[1], headers


def _json(writer, status, document, headers=None):
    _plain(writer, status, json.dumps(document), {"content-type": "application/json", **(headers or {})})


def _plain(writer, status, text, headers=None):
    body = text.encode()
    lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def _chunk(writer, text):
    body = text.encode()
    writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
