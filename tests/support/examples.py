"""How many examples a costly property gets."""

from hypothesis import settings

USUAL = 30


def examples(usual: int) -> int:
    """Return `usual` in the usual profile, else what the profile has."""
    profile = settings.default
    return usual if profile is None or profile.max_examples == USUAL else profile.max_examples
