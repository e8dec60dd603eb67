"""A worker process that streams events for ever. ``python firehose.py EVENT_BYTES`` prints its port."""

import asyncio
import contextlib
import socket
import sys


async def main(event_bytes):
    event = b"data: " + b"x" * event_bytes + b"\n\n"
    piece = b"%x\r\n%s\r\n" % (len(event), event)

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                writer.write(piece)
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main(int(sys.argv[1])))
