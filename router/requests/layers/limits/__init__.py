"""The limits of a caller: a request is charged by an estimate when it starts, and by its usage when it ends."""
