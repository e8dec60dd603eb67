"""How much the property tests try: `--hypothesis-profile=long` for an hour or so, `quick` while working on them."""

from hypothesis import HealthCheck, settings

_SLOW_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("quick", max_examples=30, **_SLOW_MACHINE)
settings.register_profile("usual", max_examples=200, **_SLOW_MACHINE)
settings.register_profile("long", max_examples=100_000, **_SLOW_MACHINE)
