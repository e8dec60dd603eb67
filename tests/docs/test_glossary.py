"""The words that `docs/glossary.md` bans stay out of the code and the docs.

Run this file as a script to list what is left, by word.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
PACKAGES = ("router", "policies", "backends", "loadtest")
PAGES = ("*.md", "docs/**/*.md", "docs/*.yaml", "deploy/**/*")


class Rule(NamedTuple):
    form: str
    kind: str
    instead: str


class Use(NamedTuple):
    form: str
    place: str
    instead: str


class Piece(NamedTuple):
    """One identifier, one class definition or a stretch of prose, and where it stands."""

    kind: str
    text: str
    place: str


@cache
def rules() -> tuple[Rule, ...]:
    table = GLOSSARY.read_text().split("## Words not to use")[1]
    rows = re.findall(r"^\| (`.+`) \| (word|name|class|phrase) \| (.+) \|$", table, re.MULTILINE)
    return tuple(Rule(form, kind, instead) for forms, kind, instead in rows for form in re.findall(r"`([^`]+)`", forms))


def plain(text: str) -> str:
    """Lower case, with identifiers split into their parts and each gap one space."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", text)
    return re.sub(r"\s+", " ", parts).lower()


@cache
def pattern(kind: str) -> re.Pattern[str]:
    forms = [rule.form for rule in rules() if rule.kind == kind]
    normal = forms if kind in ("name", "class") else [plain(form) for form in forms]
    either = "|".join(map(re.escape, sorted(normal, key=len, reverse=True)))
    return re.compile(rf"^(?:{either})$" if kind == "class" else rf"\b(?:{either})\b")


KINDS = {"identifier": ("word", "name"), "class": ("class",), "prose": ("word", "name", "phrase")}


@cache
def broken(piece_kind: str, piece_text: str) -> list[Rule]:
    """Return the rules that a text breaks. Most identifiers stand in the code many times."""
    found = []
    for kind in KINDS[piece_kind]:
        text = piece_text if kind in ("name", "class") else plain(piece_text)
        for form in sorted(set(pattern(kind).findall(text))):
            if kind == "name" and piece_kind == "prose" and "_" not in form:
                continue  # `told` and `rho` are words of prose, too
            found.append(next(rule for rule in rules() if rule.kind == kind and form in (rule.form, plain(rule.form))))
    return found


def of_code(path: Path) -> Iterator[Piece]:
    source = path.read_text()
    where = path.relative_to(ROOT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        place = f"{where}:{token.start[0]}"
        if token.type == tokenize.NAME:
            yield Piece("identifier", token.string, place)
        elif token.type not in (tokenize.OP, tokenize.NUMBER) and token.string.strip():
            yield Piece("prose", token.string, place)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield Piece("class", node.name, f"{where}:{node.lineno}")


def of_page(path: Path) -> Iterator[Piece]:
    text = path.read_text()
    if path == GLOSSARY:
        text = text.split("## Words not to use")[0]
    for number, line in enumerate(text.splitlines(), 1):
        yield Piece("prose", line, f"{path.relative_to(ROOT)}:{number}")


def pieces() -> Iterator[Piece]:
    for package in PACKAGES:
        for path in sorted(ROOT.glob(f"{package}/**/*.py")):
            yield from of_code(path)
    for path in sorted({path for glob in PAGES for path in ROOT.glob(glob) if path.is_file()}):
        yield from of_page(path)


def uses() -> list[Use]:
    return [Use(rule.form, piece.place, rule.instead) for piece in pieces() for rule in broken(piece.kind, piece.text)]


def test_banned_words_stay_out_of_code_and_docs():
    wrong = [f"{place}: not `{form}` but: {instead}" for form, place, instead in uses()]
    assert wrong == []


@pytest.mark.parametrize(
    ("piece", "forms"),
    [
        (Piece("identifier", "resting_context", ""), ["resting"]),
        (Piece("identifier", "HedgeBudget", ""), ["hedge"]),
        (Piece("identifier", "interesting", ""), []),
        (Piece("identifier", "backlog", ""), []),
        (Piece("identifier", "backlog_s", ""), ["backlog_s"]),
        (Piece("prose", "the `backlog_s` of a worker", ""), ["backlog_s"]),
        (Piece("prose", "Whoever is  told of it", ""), ["is told"]),
        (Piece("prose", "which two means cannot be told apart", ""), ["be told"]),
        (Piece("prose", "the listen backlog, an exchange of messages, the data plane", ""), []),
        (Piece("class", "Plane", ""), ["Plane"]),
        (Piece("class", "ControlPlane", ""), []),
    ],
)
def test_a_banned_form_is_found_where_its_kind_says(piece, forms):
    assert [rule.form for rule in broken(piece.kind, piece.text)] == forms


def test_the_glossary_explains_each_term_once():
    terms = re.findall(r"^\| ([^|`]+) \| [^|]+ \|$", GLOSSARY.read_text().split("## Words not to use")[0], re.MULTILINE)
    names = [term for term in terms if term != "term"]
    assert len(names) == len(set(names)) >= 60


if __name__ == "__main__":
    places = defaultdict(list)
    for use in uses():
        places[use.form].append(use.place)
    for form, at in sorted(places.items(), key=lambda item: -len(item[1])):
        sys.stdout.write(f"{len(at):5} {form:24} {' '.join(at[:6])}\n")
