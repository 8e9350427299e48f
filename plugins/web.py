"""Reading a web page: its title and main text, through the gateway's outbound guard."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from selectolax.lexbor import LexborHTMLParser, LexborNode

from gateway.tools import ToolContext, Tools, tool

MAX_CHARS = 8_000

_NOISE = (
    "script, style, noscript, template, svg, nav, header, footer, aside, form, iframe, [hidden], [aria-hidden=true]"
)
_BLOCKS = "p, div, section, article, li, tr, h1, h2, h3, h4, h5, h6, blockquote, pre, br, dt, dd, table, ul, ol"


@tool(timeout_s=20, retries=1)
async def web_fetch(url: str, ctx: ToolContext) -> dict[str, Any]:
    """Fetch a web page and read its title and main text when the user gives a URL (打开网页, 网址, 链接, 总结网页).

    url: the page's address, for example https://example.com/page
    """
    page = await ctx.resources["outbound"].fetch(url, timeout_s=15, headers={"Accept": "text/html, text/plain;q=0.9"})
    if page.status >= 400:
        raise ValueError(f"the page answered with status {page.status}")
    kind = page.content_type
    if kind in {"text/html", "application/xhtml+xml", "application/octet-stream", ""}:
        title, text = await asyncio.to_thread(main_text, page.text)
    elif kind.startswith("text/") or kind.endswith(("json", "xml")):
        title, text = "", page.text.strip()
    else:
        raise ValueError(f"the address holds {kind}, which is no text")
    found: dict[str, Any] = {"url": page.url, "title": title, "text": text[:MAX_CHARS]}
    if len(text) > MAX_CHARS:
        found["left_out"] = f"{len(text) - MAX_CHARS} of {len(text)} characters"
    return found


def main_text(html: str) -> tuple[str, str]:
    """A page's title, and the text of its article, main part or body, one line a block."""
    tree = LexborHTMLParser(html)
    heading = tree.css_first("title") or tree.css_first("h1")
    title = _plain(heading.text(deep=True)) if heading is not None else ""
    for node in tree.css(_NOISE):
        node.decompose()
    root = _root(tree)
    if root is None:
        return title, ""
    for node in root.css(_BLOCKS):
        node.insert_before("\n")
        node.insert_after("\n")
    lines = (_plain(line) for line in root.text(deep=True).split("\n"))
    return title, "\n".join(line for line in lines if line)


def register(registry: Tools) -> None:
    """Add the reader."""
    registry.add(web_fetch)


def _root(tree: LexborHTMLParser) -> LexborNode | None:
    """The one article or the main part, where it holds most of what the page says; else the body."""
    body = tree.body
    whole = len(body.text(deep=True)) if body is not None else 0
    for selector in ("main", "[role=main]", "article"):
        found = tree.css(selector)
        if len(found) == 1 and len(found[0].text(deep=True)) * 4 > whole:
            return found[0]
    return body


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
