"""What the router may look at.

Pure. Knows which text of a conversation is routed on; does not know routes.
"""

from __future__ import annotations

import msgspec


class Facts(msgspec.Struct, frozen=True, gc=False):
    """Everything a decision may depend on, beside the version.

    Attributes:
        text: the last user message's text parts, joined by line breaks, as the client sent them but for blanks in the
            place of what programs added; may be empty.
        before: the same of the user message before it: what a short question may lean on.
        model: the name the client asked for.
        tags: tags of the key and, where allowed, of the request.
        has_tools: whether the client sent tools.
        has_image: whether any message of the request carries an image.
        tokens: a cheap estimate of the request's prompt tokens.
        allowed_routes: routes the key may use, or None for all.
        allowed_models: models the key may use, or None for all.
        kept: the route this conversation is on, where `router.sticky` asks for it and there is one.
    """

    text: str
    model: str = "auto"
    tags: frozenset[str] = frozenset()
    has_tools: bool = False
    has_image: bool = False
    tokens: int = 0
    allowed_routes: frozenset[str] | None = None
    allowed_models: frozenset[str] | None = None
    before: str = ""
    kept: str | None = None
