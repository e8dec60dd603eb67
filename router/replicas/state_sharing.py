"""The admin API's changes in Redis: one hash, replaced by compare-and-set, and followed by every gateway.

The versions travel in the channel's messages, so a gateway that is behind learns it within a tenth of a second. After
Redis comes back empty, the first gateway with a version writes its document, and one with a higher version replaces it.

Redis is less trusted than the admin port: a document has a bounded size, is decoded once, and one that cannot be used
is not tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from backends.foreign_json import read_json
from router.config.model import RedisConfig
from router.config.problems import ConfigError
from router.control.change import NotAppliedError
from router.control.control import Control
from router.control.sharing import ApartError, SharedChanges
from router.control.state_file import NotSavedError
from router.replicas.connection import RedisClient, key
from router.replicas.line import ended
from router.replicas.messages import StateVersion

log = logging.getLogger("warmroute.replicas")

LOOK_S = 2.0
"""The document is read at least this often, whatever the messages say."""
_TICK_S = 0.05
_AGAIN_S = 0.25
"""Time until a failed step is tried again."""
MOST_BYTES = 1 << 20
"""A longer document is neither read nor written. It has room for 3,000 workers that the admin API has added."""
_READ = """
local size = redis.call('HSTRLEN', KEYS[1], 'body')
if size > tonumber(ARGV[1]) then
  return size
end
return redis.call('HGET', KEYS[1], 'body')
"""
_REPLACE = """
local number = tonumber(redis.call('HGET', KEYS[1], 'number') or '-1') or -1
local change = redis.call('HGET', KEYS[1], 'change')
local base = tonumber(ARGV[1])
if number < base or (number == base and change == ARGV[2]) then
  redis.call('HSET', KEYS[1], 'number', ARGV[3], 'change', ARGV[4], 'body', ARGV[5])
  return 1
end
return 0
"""


class UnusableDocumentError(Exception):
    """The document cannot be used; the message says why."""


class StateSharing:
    """One gateway's side. Satisfies `router.control.sharing.Sharing`."""

    def __init__(
        self,
        client: RedisClient,
        config: RedisConfig,
        control: Control,
        gateway: str,
        heard: Callable[[], Iterable[StateVersion]],
    ) -> None:
        self._client = client
        self._key = key(config, "state")
        self._control = control
        self._gateway = gateway
        self._heard = heard
        self._refused = StateVersion()
        """The version that this gateway could not take on."""
        self._body: bytes = b""
        self._document = SharedChanges()
        """The document as it was read last, and what it says."""
        self._problem = ""
        self._task: asyncio.Task[None] | None = None
        control.sharing = self

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="replicas: state")

    async def aclose(self) -> None:
        if self._task is not None:
            await ended([self._task])

    @property
    def gateway(self) -> str:
        return self._gateway

    @property
    def version(self) -> StateVersion:
        return version_of(self._control.shared)

    async def propose(self, after: SharedChanges, before: SharedChanges) -> SharedChanges | None:
        """Replace the document; see `Sharing.propose`."""
        try:
            if await self._replace(after, version_of(before)):
                return None
            return await self._read()
        except Exception as error:  # of the library, of TLS or of the system
            raise ApartError(str(error)) from None

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = 0.0
        while True:
            if loop.time() >= next_s or self._behind():
                next_s = loop.time() + (LOOK_S if await self._look() else _AGAIN_S)
            await asyncio.sleep(_TICK_S)

    def _behind(self) -> bool:
        """Whether another gateway has a higher version, or another one of the same number."""
        own = self.version
        return any(each.number >= own.number and each not in (own, self._refused) for each in self._heard())

    async def _look(self) -> bool:
        """Bring this gateway and the document together; return whether that worked."""
        try:
            there = await self._read()
            if there is None:
                return await self._write_back()
            return await self._take(there)
        except UnusableDocumentError as error:
            if self._problem != str(error):
                self._problem = str(error)
                log.error("the fleet's changes cannot be shared; the settings stay as they are", extra=self._reason)
            return True
        except Exception as error:  # as above
            log.debug("shared state not read", extra={"reason": str(error)})
            return False

    @property
    def _reason(self) -> dict[str, str]:
        return {"document": self._key, "reason": self._problem}

    async def _take(self, there: SharedChanges) -> bool:
        own, found = self.version, version_of(there)
        if found.number < own.number:
            return await self._write_back()
        if found == own:
            self._settled()
            return True
        if found == self._refused:
            return True
        return await self._adopt(there)

    async def _adopt(self, there: SharedChanges) -> bool:
        try:
            return await self._control.follow_shared(there)
        except Exception as error:  # it is not tried again, whatever is wrong with it
            self._refused = version_of(there)
            expected = isinstance(error, ConfigError | NotAppliedError | NotSavedError | msgspec.ValidationError)
            reason = str(error) if expected else f"{type(error).__name__}: {error}"
            fields = {"version": there.number, "from": there.gateway, "reason": reason}
            log.error("the fleet's changes cannot be made here; the settings stay as they are", extra=fields)
            return True

    async def _write_back(self) -> bool:
        """Write this gateway's document, which is newer than the one in Redis, or the only one."""
        own = self._control.shared
        if not own.number:
            await self._control.share_kept()
        elif await self._replace(_joined(own), version_of(own)):
            self._settled()
        return True

    def _settled(self) -> None:
        self._control.joined(_joined(self._control.shared))

    async def _read(self) -> SharedChanges | None:
        command: Any = self._client.eval(_READ, 1, self._key, MOST_BYTES)
        body = await command
        if body is None:
            return None
        if isinstance(body, int):
            raise UnusableDocumentError(f"it has {body} bytes; at most {MOST_BYTES} are read")
        if body != self._body:
            self._document = _decoded(body)
            self._body = body
        self._problem = ""
        return self._document

    async def _replace(self, after: SharedChanges, base: StateVersion) -> bool:
        body = msgspec.json.encode(after)
        if len(body) > MOST_BYTES:
            raise UnusableDocumentError(f"the fleet's changes have {len(body)} bytes; at most {MOST_BYTES} are shared")
        command: Any = self._client.eval(
            _REPLACE, 1, self._key, base.number, base.change, after.number, after.change, body
        )
        return bool(await command)


def _decoded(body: bytes) -> SharedChanges:
    try:
        return read_json(body, SharedChanges)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableDocumentError(f"it is no document of shared changes: {error}") from None


def version_of(shared: SharedChanges) -> StateVersion:
    return StateVersion(shared.number, shared.change)


def _joined(shared: SharedChanges) -> SharedChanges:
    return shared if shared.apart is msgspec.UNSET else msgspec.structs.replace(shared, apart=msgspec.UNSET)
