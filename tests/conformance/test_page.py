"""docs/reference/http.md matches the tables it is generated from."""

from tests.conformance.page import PAGE, page


def test_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.build"
