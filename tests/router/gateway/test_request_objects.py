"""What the gateway keeps for one chat between two tokens: fewer objects are fewer allocations and look-ups."""

import enum
import gc
import sys
import types
from collections import Counter

from tests.support.answers import DONE, END, STREAM_HEAD, chunk, event
from tests.support.raw_client import post

MOST = 15
OURS = ("router", "policies")
ELSEWHERE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType, enum.Enum)


def found_from(roots, known=frozenset()):
    """Return the objects that `roots` lead to, by id, without those in `known`."""
    found, left = {}, list(roots)
    while left:
        one = left.pop()
        if id(one) in found or id(one) in known or isinstance(one, ELSEWHERE):
            continue
        found[id(one)] = one
        left.extend(gc.get_referents(one))
    return found


def request_shaped(found):
    mine = [type(one) for one in found.values() if type(one).__module__.split(".")[0] in OURS]
    return Counter(kind.__qualname__ for kind in mine)


async def test_a_chat_in_mid_stream_keeps_few_objects(rig):
    async def script(script):
        await script.say(STREAM_HEAD, chunk(event("a")))
        if len(gate.workers[0].requests) <= 2:
            await script.say(chunk(DONE), END)
        else:
            await script.gone()

    gate = await rig(script)
    client = await gate.connect()
    for _ in range(2):
        await client.ask(post())
    parts = gate.gateway._parts
    (connection,) = parts.drain.connections
    modules = [vars(module) for name, module in sys.modules.items() if name.split(".")[0] in OURS]
    before = found_from([parts, gate.fleet, gate.core, connection, *modules])
    client.writer.write(post())
    await client.reader.readuntil(event("a"))
    (request,) = parts.requests.running
    kept = request_shaped(found_from([request, connection], before))
    assert sum(kept.values()) <= MOST, kept
