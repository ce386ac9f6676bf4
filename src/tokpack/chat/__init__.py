"""Conversations: records are rendered by a template, and the trained text is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.chat.rendered import LISTS as LISTS
from tokpack.chat.rendered import NO_VARIABLES as NO_VARIABLES
from tokpack.chat.rendered import OUTSIDE as OUTSIDE
from tokpack.chat.rendered import PAIRS as PAIRS
from tokpack.chat.rendered import ChatOptions as ChatOptions
from tokpack.chat.rendered import ConversationError as ConversationError
from tokpack.chat.rendered import Rendered as Rendered
from tokpack.chat.rendered import Rewriting as Rewriting
from tokpack.chat.rendered import ToolArguments as ToolArguments
from tokpack.chat.rendered import Truncate as Truncate
from tokpack.chat.rendered import Turn as Turn
from tokpack.chat.rendered import utf8 as utf8
from tokpack.face import face

if TYPE_CHECKING:
    from tokpack.chat.records import NO_NUMBER as NO_NUMBER
    from tokpack.chat.records import detect as detect
    from tokpack.chat.records import number_of as number_of
    from tokpack.chat.records import pairs_in as pairs_in
    from tokpack.chat.renderer import Renderer as Renderer
    from tokpack.chat.template import ChatTemplate as ChatTemplate
    from tokpack.chat.template import load_template as load_template
    from tokpack.chat.tokens import RenderedTokens as RenderedTokens
    from tokpack.chat.tokens import render as render

# What renders needs jinja2.
__getattr__, __all__ = face(
    __name__,
    {
        "records": "NO_NUMBER detect number_of pairs_in",
        "renderer": "Renderer",
        "template": "ChatTemplate load_template",
        "tokens": "RenderedTokens render",
    },
)
