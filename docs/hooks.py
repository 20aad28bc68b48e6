"""What the site has beyond the pages: files of the project that a page links to, such as examples.

A page in `docs/` links to `../examples/engine.py`, so that the link works in the repository. On the site the file lies
beside the pages, under the same path.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)")  # in a page that lies in `docs/` itself


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of `docs/` that its pages link to."""
    pages = [file.content_string for file in files.documentation_pages() if "/" not in file.src_uri]
    for path in sorted({path for page in pages for path in OUTSIDE.findall(page)}):
        file = File.generated(config, path, content=(ROOT / path).read_text())
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links lead to where the files are on the site."""
    return markdown if "/" in page.file.src_uri else markdown.replace("](../", "](").replace("](docs/", "](")
