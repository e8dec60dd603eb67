"""The ``warmroute`` command, one file per subcommand.

`main.main` is the console entry. A command module has ``register(subparsers)``, which adds its parser and sets ``run``
to a function from the parsed arguments to an exit code. Other distributions add commands by entry points in the group
``warmroute.commands``. `options` holds the flags that several commands share. Nothing imports this package.
"""
