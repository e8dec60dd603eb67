"""The command lines on the pages parse, and the page of benchmarks has one for every part of the bench."""

import argparse
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import loadtest
from loadtest.workload.source import GENERATOR, parse_source

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "README", "SECURITY"))]
COMMAND = re.compile(r"(?:\S+/)?(?:python (?:-P )?-m (?:loadtest|router)\b|warmroute (?=[a-z]))")
NAMED = re.compile(r"(?:\S+/)?(?:python (?:-P )?-m (?:loadtest [\w-]+|[\w.]+)|warmroute [\w-]+)")
"""A command without arguments. In a sentence it is a name only, so its arguments may be missing."""
PLACEHOLDERS = {"L,L,L": "0.6,0.8", "K": "2", "NAME": "agents"}
MODULES = [
    f"loadtest.bench.parts.{path.stem}"
    for path in sorted((Path(loadtest.__file__).parent / "bench/parts").glob("[!_]*.py"))
]


def shell_lines(block):
    """Yield the lines of a shell block, joined at backslashes, with the values of the block's variables."""
    variables = {}
    for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
        filled = re.sub(r"\$(\w+)", lambda match: variables.get(match[1], match[0]), line)
        assigned = re.fullmatch(r'([A-Z]+)="?([^"]*)"?', filled)
        if assigned:
            variables[assigned[1]] = assigned[2]
        yield filled


def commands(page):
    """Yield the words of each command of this repository on a page, with --help for a command that is only named."""
    text = page.read_text()
    fence = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    in_blocks = [line for kind, block in fence.findall(text) if kind in ("sh", "bash") for line in shell_lines(block)]
    in_text = re.findall(r"`([^`\n]+)`", fence.sub("", text))
    lines = in_blocks + [f"{line} --help" if NAMED.fullmatch(line) else line for line in in_text]
    for part in [part for line in lines for part in line.split(" | ")]:
        if COMMAND.match(part):
            words = shlex.split(part.split(" < ")[0], comments=True)
            yield tuple(PLACEHOLDERS.get(word, word) for word in words if word != "...")


COMMANDS = {words: page.stem for page in reversed(PAGES) for words in commands(page)}
"""Each command, and the first page that has it."""


class Parsed(Exception):
    pass


@pytest.fixture
def parse(monkeypatch, capsys):
    """Return a function that runs a command until it has parsed its arguments, and returns these."""
    original = argparse.ArgumentParser.parse_args

    def stop(parser, *arguments):
        raise Parsed(original(parser, *arguments))

    def run(words):
        is_module = "-m" in words
        first = words.index("-m") + 1 if is_module else 0
        module = words[first] if is_module else "warmroute"
        monkeypatch.setattr(sys, "argv", [module, *words[first + 1 :]])
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
        monkeypatch.delitem(sys.modules, module, raising=False)  # else runpy warns
        try:
            runpy.run_module(module, run_name="__main__")
        except Parsed as parsed:
            return parsed.args[0]
        except SystemExit as ended:
            if ended.code:
                pytest.fail(capsys.readouterr().err)
            return argparse.Namespace()
        raise AssertionError(f"{module} has no arguments")

    return run


@pytest.mark.parametrize("words", COMMANDS, ids=[f"{page}: {' '.join(w)[:90]}" for w, page in COMMANDS.items()])
def test_a_command_on_a_page_parses(parse, words):
    trace = str(getattr(parse(words), "trace", None))
    if trace.startswith(GENERATOR):
        parse_source(trace)


@pytest.mark.parametrize("module", MODULES)
def test_the_page_of_benchmarks_has_a_command_of_each_part(module):
    assert any(module in words for words in commands(ROOT / "docs" / "benchmarks.md"))
