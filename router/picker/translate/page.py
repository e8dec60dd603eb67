"""The translation as text: settings in YAML, beneath comments on each item."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import yaml

from router.picker.translate.notes import Became, Findings

_WIDTH = 110
_RECOMMENDED = (
    "The default policy, marginal_cost, needs no weights: remove `policy` to use it, or compare both on your own "
    "traffic first (routes with `shadow`, or POST /admin/v1/what-if)."
)


def page_of(found: Findings, name: str) -> str:
    """Return a settings file for what was `found` in the file `name`."""
    lines = [*_comment(f"Settings of Warmroute for {name}. Check them with: warmroute config --config FILE"), "#"]
    if found.settings.get("policy", {}).get("rule") != "marginal_cost":
        lines += [*_comment(_RECOMMENDED), "#"]
    for became in Became:
        notes = list(dict.fromkeys(found.of(became)))
        if notes:
            lines += [
                f"# {became.value}:",
                *(line for one in notes for line in _comment(f"{one.item}: {one.text}", "- ")),
            ]
            lines.append("#")
    settings = yaml.safe_dump(found.settings, sort_keys=False, allow_unicode=False)
    return "\n".join([*lines[:-1], settings])


def _comment(text: str, bullet: str = "") -> Iterator[str]:
    """Yield comment lines. A name from the file must not end the comment, whatever its characters are."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    yield from textwrap.wrap(
        shown,
        _WIDTH,
        initial_indent=f"# {bullet}",
        subsequent_indent=f"#{' ' * (len(bullet) + 1)}",
        break_on_hyphens=False,
    )
