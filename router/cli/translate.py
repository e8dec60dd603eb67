"""``--translate FILE``: print our settings for those of another picker."""

from __future__ import annotations

import argparse
from pathlib import Path

from router.config.problems import ConfigError, Problem

_FLAG = "--translate"
_MOST_BYTES = 1 << 20


def add_translate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        _FLAG,
        metavar="FILE",
        type=Path,
        help="print the settings for an EndpointPickerConfig of llm-d or GAIE, and what has none, and exit",
    )


def print_translation(file: Path) -> int:
    """Print the settings for an `EndpointPickerConfig`.

    Raises:
        ConfigError: the file cannot be read, or has a mistake.
    """
    # late: other commands need no rules
    from router.picker.translate.page import page_of
    from router.picker.translate.picker_config import read_picker_config
    from router.picker.translate.translate import translate

    print(page_of(translate(read_picker_config(_text(file), str(file))), str(file)), end="")
    return 0


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ConfigError([Problem(_FLAG, f"{str(file)!r} has more than {_MOST_BYTES} bytes", "give another file")])
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError([Problem(_FLAG, f"cannot read {str(file)!r}: {said}", "give a readable file")]) from None
