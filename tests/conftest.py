"""How much the property tests try: `--hypothesis-profile=long` for hours, `quick` while working on one, `repeatable`
for the same examples every time. And Ctrl-C for the processes that tests start, also where they run in the background.
"""

import signal

from hypothesis import HealthCheck, settings

# On a machine with other work to do, time says nothing about the code.
_ANY_MACHINE = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("quick", max_examples=20, **_ANY_MACHINE)
settings.register_profile("usual", max_examples=100, **_ANY_MACHINE)
settings.register_profile("repeatable", max_examples=100, derandomize=True, **_ANY_MACHINE)
settings.register_profile("long", max_examples=50_000, **_ANY_MACHINE)


def pytest_configure(config):
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("usual")
    # a shell has what runs with "&" ignore it, and so would every child
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
