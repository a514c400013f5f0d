"""The documentation: the files of `docs/` as pages, at the addresses that errors link to."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import Path as PathParameter
from fastapi import Request, Response
from fastapi.responses import FileResponse
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

import assay
from assay.domain.errors import NotFound
from services.implementer.pages.diffs import highlight
from services.implementer.pages.rendering import HEADERS, render
from services.implementer.pages.routing import page_router

router = page_router()
#: What a reader wants first; other pages follow by name.
_FIRST = ("quickstart", "concepts", "dashboard", "cli", "api", "errors")
_PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
DocumentName = Annotated[str, PathParameter(max_length=200)]


@dataclass(frozen=True)
class Document:
    """A page of the documentation. `html` is made of our own files, and so trusted."""

    name: str
    title: str
    html: Markup


@router.get("/docs")
def first(request: Request) -> Response:
    """Show the page that a newcomer reads first."""
    return _page(request, _FIRST[0])


@router.get("/docs/images/{name}")
def picture(name: DocumentName) -> Response:
    """Serve a picture of the documentation."""
    path = folder() / "images" / name
    media_type = _PICTURES.get(path.suffix)
    if media_type is None or path.name != name or not path.is_file():
        raise NotFound(f"the documentation has no picture {name!r}")
    # A picture brings its own styles, and is shown as an image, where nothing of it runs.
    policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    headers = {**HEADERS, "Content-Security-Policy": policy, "Cache-Control": "max-age=3600"}
    return FileResponse(path, media_type=media_type, headers=headers)


@router.get("/docs/{name:path}")
def document(name: DocumentName, request: Request) -> Response:
    """Show a page of the documentation."""
    return _page(request, name.removesuffix(".md"))


def _page(request: Request, name: str) -> Response:
    if name not in names():
        raise NotFound(f"the documentation has no page {name!r}")
    return render(request, "document.html", document=read_document(name), names=names())


@cache
def folder() -> Path:
    """Return where the documentation is: in the package, or beside it in a checkout."""
    package = Path(assay.__file__).resolve().parent
    installed = package / "_docs"
    return installed if installed.is_dir() else package.parent.parent / "docs"


@cache
def names() -> Sequence[str]:
    """Return the names of all pages, those first that are read first."""
    found = [p.relative_to(folder()).with_suffix("").as_posix() for p in folder().rglob("*.md")]
    first_ones = [name for name in _FIRST if name in found]
    rest = sorted(set(found) - set(first_ones), key=lambda name: ("/" in name, name))
    return [*first_ones, *rest]


@cache
def read_document(name: str) -> Document:
    """Return a page as HTML. `name` is one of `names()`."""
    parser = MarkdownIt("commonmark", {"html": True, "highlight": _highlighted})
    tokens = parser.enable(["table", "strikethrough"]).parse((folder() / f"{name}.md").read_text())
    title = name
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            token.attrSet("id", slug(following.content))
            title = following.content if token.tag == "h1" else title
        if token.type == "table_open":
            token.attrSet("tabindex", "0")  # a wide one is scrolled, with keys as well
        for child in token.children or ():
            _lead_here(child, name)
    html = parser.renderer.render(tokens, parser.options, {})
    html = html.replace("<pre>", '<pre tabindex="0">')  # long lines are scrolled as well
    return Document(name, title.replace("`", ""), Markup(html))


def _highlighted(code: str, language: str, _attributes: Any) -> str:
    return "\n".join(highlight(code, f"x.{language}")) if language else ""


def _lead_here(token: Token, name: str) -> None:
    """Change a link or picture between files into one between pages."""
    attribute = {"link_open": "href", "image": "src"}.get(token.type)
    target = str(token.attrGet(attribute) or "") if attribute else ""
    if attribute is None or not target or re.match(r"[a-z]+:|#|/", target):
        return
    path, mark, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if path.startswith(".."):  # a file of the repository that is no page
        token.attrs.pop(attribute)
        return
    token.attrSet(attribute, f"/docs/{path.removesuffix('.md')}{mark}{anchor}")


def slug(heading: str) -> str:
    """Return the anchor that a heading gets where Markdown is shown."""
    text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return text.replace(" ", "-")
