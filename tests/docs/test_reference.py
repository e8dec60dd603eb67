from pathlib import Path

import pytest

from docs.build.reference import PAGES

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name):
    fix = "run python -m docs.build"
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), fix
