"""The pages name settings that exist."""

import re
from pathlib import Path

import msgspec

from router.config import model

ROOT = Path(__file__).parents[2]
SECTIONS = {field.name for field in msgspec.structs.fields(model.Config)}
KEYS = {
    field.name
    for kind in vars(model).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    for field in msgspec.structs.fields(kind)
}
OTHERS = {"tokenizer.json", "redis.conf", "workers.image", "policies.ranking"}
"""Files, a value of the chart and a module."""


def test_pages_name_no_setting_that_is_gone():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/how-to").glob("*.md")]
    named = {
        (page.name, f"{section}.{key}")
        for page in pages
        for section, key in re.findall(r"`([a-z_]+)\.([a-z_]+)(?:: [^`]*)?`", page.read_text())
        if section in SECTIONS and key not in KEYS
    }
    assert {each for each in named if each[1] not in OTHERS} == set()
