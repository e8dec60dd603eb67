import asyncio

import pytest

from loadtest.load.http import Connection
from tests.support.exchanges import Response

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    def write(self, data): ...

    def abort(self): ...


async def response():
    """Return a connection, and a response of which the body is still to come."""
    connection, answer = Connection(), Response(asyncio.get_running_loop().create_future())
    connection.connection_made(Wire())
    connection.send(b"GET / HTTP/1.1\r\n\r\n", answer)
    connection.data_received(HEAD)
    await answer.begun
    return connection, answer


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConnectionResetError("gone")], ids=repr)
async def test_what_ends_a_connection_reaches_the_reader(error):
    connection, answer = await response()
    connection.connection_lost(error)
    with pytest.raises(type(error)):
        await answer.read()


async def test_a_connection_that_just_closes_breaks_the_response():
    connection, answer = await response()
    connection.connection_lost(None)
    with pytest.raises(ConnectionResetError, match="before the response's end"):
        await answer.read()
