"""One page to read: the report as HTML, its pictures within it."""

import pathlib
import re

import markdown

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>tf_sparse_strategy: results</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.85rem; }}
th, td {{ padding: 0.2rem 0.6rem; border-bottom: 1px solid #ddd; white-space: nowrap; }}
svg {{ max-width: 100%; height: auto; }}
</style>
{body}
</html>
"""


def html(text: str, directory: pathlib.Path) -> str:
    """The page of a Markdown text whose .svg pictures lie in `directory`."""
    body = markdown.markdown(text, extensions=["tables"])

    def picture(found):
        svg = (directory / found[1]).read_text()
        return svg[svg.index("<svg") :]

    return _PAGE.format(body=re.sub(r'<img [^>]*src="(\w+\.svg)"[^>]*>', picture, body))
