from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from router.cli.guard import USAGE_ERROR, guarded
from router.cli.translate import add_translate, print_translation
from router.settings import load

FILE = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_translate(parser)
    return guarded(lambda arguments: print_translation(arguments.translate), parser.parse_args(argv))


def test_the_page_is_printed_and_can_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "epp.yaml", tmp_path / "warmroute.yaml"
    file.write_text(FILE)
    assert run("--translate", str(file)) == 0
    page.write_text(capsys.readouterr().out)
    assert load({}, {}, page).policy.rule == "llmd_blend"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "--translate: cannot read .*No such file.*; give a readable file"),
        (b"\xff", "not UTF-8 text"),
        (b" " * 1_048_577, "has more than 1048576 bytes"),
        (FILE.replace("queue-scorer", "7").encode(), r"epp.yaml:3:12: plugins\[0\].type is no text; write type"),
    ],
)
def test_a_bad_file_is_an_error_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    file = tmp_path / "epp.yaml"
    if content is not None:
        file.write_bytes(content)
    assert run("--translate", str(file)) == USAGE_ERROR
    shown = capsys.readouterr()
    assert shown.out == "" and re.search(said, shown.err), shown.err
