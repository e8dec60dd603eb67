"""One HTML page that contains all its images and styles, so that it opens offline."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields
from html import escape

from loadtest.lab.cell import code_version
from loadtest.lab.findings import Findings
from loadtest.lab.models import Models, flag
from loadtest.lab.tables import Sheet, sheets, summary

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 78em; padding: 0 1em; color: #1b1f24 }
table { border-collapse: collapse; margin: .4em 0 }
th, td { padding: .2em .7em; border-bottom: 1px solid #d8dde3; text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left }
figure { display: inline-block; margin: .5em } img { max-width: 100% }
.note { color: #5a6470; font-size: 12px } .wide { overflow-x: auto }
"""


def page(findings: Findings, pictures: Mapping[str, bytes]) -> str:
    body = [
        "<h1>Rules on a trace</h1>",
        *(f"<p>{escape(line)}</p>" for line in summary(findings).splitlines()),
        *(_figure(name, png) for name, png in pictures.items()),
        *(_table(sheet) for sheet in sheets(findings)),
        _table(_models(findings.setting.models)),
        f'<p class="note">code {code_version()}; every cell is in results.json and cells.csv beside this page</p>',
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Rules on a trace</title>'
        f"<style>{_STYLE}</style><body>{''.join(body)}</body></html>\n"
    )


def _figure(name: str, png: bytes) -> str:
    source = b64encode(png).decode("ascii")
    return f'<figure><img alt="{escape(name)}" src="data:image/png;base64,{source}"></figure>'


def _table(sheet: Sheet) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in sheet.heads)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in row)}</tr>" for row in sheet.rows)
    return (
        f'<h2>{escape(sheet.title)}</h2><div class="wide"><table><tr>{heads}</tr>{rows}</table></div>'
        f'<p class="note">{escape(sheet.note)}</p>'
    )


def _models(models: Models) -> Sheet:
    rows = tuple((flag(one), _value(getattr(models, one.name)), one.metadata["help"]) for one in fields(models))
    return Sheet("models", ("flag", "value", "meaning"), rows)


def _value(value: object) -> str:
    return "the profile's" if value is None else str(value)
