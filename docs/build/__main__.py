"""Write every generated file: ``python -m docs.build``, in the root of a checkout."""

from __future__ import annotations

from docs.build.pages import pages

for path, text in pages().items():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
