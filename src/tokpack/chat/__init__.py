"""Conversations: records -> the text that a template makes of them, and which of it is trained."""

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
