import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def pinned():
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", LOCK, re.MULTILINE))


def test_every_dependency_is_pinned_to_a_version_that_is_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(text) for text in (*project["dependencies"], *extras["redis"], *extras["picker"])]
    late = [str(each) for each in wanted if pinned().get(each.name, "0") not in each.specifier]
    assert not late, f"run `make lock`: {late}"


def test_every_version_has_hashes_and_no_line_names_an_index():
    entries = re.split(r"^(?=[a-z0-9-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) > 20
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in LOCK and "--index" not in LOCK and "--find-links" not in LOCK
