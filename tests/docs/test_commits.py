import re
import shutil
import subprocess

import pytest

from tests.docs.test_glossary import ROOT, broken

SUBJECT = re.compile(r"(feat|fix|refactor|docs|test|build|perf|chore|ci|style)(\([\w/, -]+\))?!?: \S.*")
REMOVES = re.compile(r"\b(rename|remove|drop|cut|delete|replace|instead of)\b")
"""A subject that takes an old word away may name it."""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture
def subjects() -> list[str]:
    if shutil.which("git") is None or git("rev-parse", "--show-toplevel") != str(ROOT):
        pytest.skip("no git history")
    added = git("log", "--diff-filter=A", "--format=%H", "-1", "--", "tests/docs/test_commits.py")
    if not added:
        pytest.skip("this file is not committed yet")
    return git("log", "--no-merges", "--format=%s", f"{added}..HEAD").splitlines()


def wrong(subject: str) -> list[str]:
    form = [] if SUBJECT.fullmatch(subject) else ["not a conventional subject"]
    length = ["over 72 characters"] if len(subject) > 72 else []
    uses = [] if REMOVES.search(subject) else [rule.form for rule in broken("prose", subject)]
    return form + length + uses


def test_subjects_are_conventional_short_and_without_banned_words(subjects):
    assert {subject: wrong(subject) for subject in subjects if wrong(subject)} == {}


@pytest.mark.parametrize(
    ("subject", "problems"),
    [
        ("docs(results): say first what a reader learns", []),
        ("Whose p99 it is", ["not a conventional subject"]),
        ("fix(gateway): the keeper is restarted", ["keeper"]),
        ("refactor: rename keeper to child process", []),
        ("docs: " + "x" * 67, ["over 72 characters"]),
    ],
)
def test_each_problem_of_a_subject_is_named(subject, problems):
    assert wrong(subject) == problems
