from pathlib import Path

from docs.build.workloads import page
from loadtest.workload.generators.registry import SHAPES, parameters
from loadtest.workload.schemas.known import SCHEMAS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "workloads.md"


def test_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.build"


def test_page_names_every_field_and_parameter():
    text = page()
    assert all(f"`{field}`" in text for schema in SCHEMAS for field in schema.fields)
    assert all(f"| `{one.name}` |" in text for shape in SHAPES.values() for one in parameters(shape))
