"""Conversations: records are rendered by a template, and the trained text is marked."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokpack.chat.rendered import ChatOptions, ConversationError, Rendered, Turn

if TYPE_CHECKING:
    from tokpack.chat.tokens import RenderedTokens, render

__all__ = ["ChatOptions", "ConversationError", "Rendered", "RenderedTokens", "Turn", "render"]


def __getattr__(name: str) -> Any:
    if name not in ("RenderedTokens", "render"):
        raise AttributeError(f"module 'tokpack.chat' has no attribute {name!r}")
    return getattr(import_module("tokpack.chat.tokens"), name)  # needs jinja2
