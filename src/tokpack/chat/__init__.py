"""Conversations: records become the text that a template makes of them, with what is trained of
it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokpack.chat.rendered import ChatOptions, ConversationError, Rendered, Turn

if TYPE_CHECKING:
    from tokpack.chat.tokens import RenderedTokens, render

__all__ = ["ChatOptions", "ConversationError", "Rendered", "RenderedTokens", "Turn", "render"]


def __getattr__(name: str) -> Any:
    if name not in ("RenderedTokens", "render"):
        raise AttributeError(f"module 'tokpack.chat' has no attribute {name!r}")
    return getattr(import_module("tokpack.chat.tokens"), name)  # which needs jinja2
