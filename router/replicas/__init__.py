"""What the gateways of one fleet share through Redis. Each is a replica, and goes on alone when Redis is away.

`address.RedisAddress` is where Redis is, and `connection.connect` makes the client. Nothing on the path of a request
waits for it. Imported by admin, process, the composition root and the commands.
"""
