"""Conversations: records -> the text that a template makes of them, and which of it is trained."""

from tokpack.chat.options import ChatOptions
from tokpack.chat.rendered import ConversationError, Rendered, Turn

__all__ = ["ChatOptions", "ConversationError", "Rendered", "Turn"]
