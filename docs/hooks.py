"""What the site has beyond the pages: files of the project that a page links to, such as examples.

A page in `docs/` links to `../examples/engine.py`, as it must to be read in the repository. On the site the file lies
beside the pages, under the same path.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\]\(\.\./(?=[^)]*\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of `docs/` that its pages link to."""
    pages = [file.content_string for file in files.documentation_pages() if "/" not in file.src_uri]
    for path in sorted({path for page in pages for path in re.findall(r"\]\(\.\./([^)#]+)", page)}):
        files.append(File.generated(config, path, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let the links lead there."""
    return OUTSIDE.sub("](", markdown) if "/" not in page.file.src_uri else markdown
