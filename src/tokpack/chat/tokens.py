"""One record for people to look at: its text, its tokens, and which of them are trained."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.apart import Apart, Limits
from tokpack.chat.rendered import ChatOptions, ConversationError, Turn, utf8
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate, load_template
from tokpack.display import nearest, shown
from tokpack.errors import UsageError, option
from tokpack.tokenizers import MarkingEncoder, Tokenizer, borrowed, load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tokpack.chat.rendered import Rendered
    from tokpack.storage import PathLike

_NAMES = {one.name for one in fields(ChatOptions)}
_BEGIN, _END = "\N{LEFT DOUBLE ANGLE BRACKET}", "\N{RIGHT DOUBLE ANGLE BRACKET}"
_OF_ENCODE = {"chat_template": "template", "template_var": "variables"}  # other names in encode


class RenderedTokens(NamedTuple):
    """A conversation as it would be in a dataset.

    ``ids`` int32 [n] are its tokens, ``mask`` uint8 [n] is 1 for trained ones. ``trained`` are the
    trained spans of characters of ``text``, [begin, end), ``turns`` the spans of messages, with
    their role. ``weight`` is that of its tokens.
    """

    text: str
    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]
    trained: tuple[tuple[int, int], ...]
    turns: tuple[Turn, ...]
    weight: float

    def __repr__(self) -> str:
        return f"<RenderedTokens: {len(self.ids)} tokens, {int(self.mask.sum())} of them trained>"

    def __str__(self) -> str:
        """The text, with the trained parts in double angle brackets."""
        pieces, at = [], 0
        for begin, end in self.trained:
            pieces += [self.text[at:begin], _BEGIN, self.text[begin:end], _END]
            at = end
        return shown("".join([*pieces, self.text[at:]]), keep="\n")


def render(
    record: Mapping[str, Any], *, tokenizer: Tokenizer | PathLike, **options: Any
) -> list[RenderedTokens]:
    """The conversations that ``tokpack.encode`` makes of one record with ``chat=True`` and
    ``options``.

    Usually one; for a pair the preferred and the rejected one; with ``rewriting="split"`` one for
    each assistant turn. Nothing is cut or left out for its length. Raises ConversationError for a
    record that is not a conversation, UsageError and TokenizerError as encode does, LimitError for
    a template that takes too much time or memory: it runs in a process of its own.
    """
    names = {_OF_ENCODE.get(name, name): value for name, value in options.items()}
    for name in names:
        if name not in _NAMES:
            hint = nearest(name, (*_NAMES, *_OF_ENCODE))
            raise UsageError(
                f"render has no option {name!r}" + (f": did you mean {hint}?" if hint else "")
            )
    if not isinstance(record, Mapping):
        raise UsageError(
            f"a record is a mapping such as {{'messages': [...]}}, not a {type(record).__name__}"
        )
    if isinstance(names.get("pairs"), str):
        raise UsageError(f"{option('pairs')} takes two keys")
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = load_tokenizer(tokenizer)
    chat_options = ChatOptions(
        **{name: value for name, value in names.items() if value is not None}
    )
    template = load_template(tokenizer, chat_options)
    rendered = process_for(template, chat_options)({**record})
    if isinstance(rendered, ConversationError):
        raise rendered
    build = partial(MarkingEncoder, tokenizer, dtype="int32")
    result = []
    with borrowed(tokenizer, MarkingEncoder, build) as encoder:
        for one in rendered:
            utf8(one.text)
            encoded = encoder.encode([one.text], [one.trained])
            ids, mask = encoded.ids.copy(), encoded.mask
            turns = tuple(starmap(Turn, one.turns))
            result.append(RenderedTokens(one.text, ids, mask, one.trained, turns, one.weight))
    return result


class _Kept(threading.local):
    """The process for the last template and options that a thread has used."""

    key = ""
    process: Apart | None = None


_kept = _Kept()


def process_for(template: ChatTemplate, options: ChatOptions) -> Apart:
    """The process that renders with a template: that of the last call, or a new one."""
    key = repr((template, options))
    process = _kept.process
    if process is None or not process.is_there or _kept.key != key:
        if process is not None and process.is_there:
            process.close()
        process = Apart(f"{template.where}: the chat template", Rendering(template, options))
        _kept.key, _kept.process = key, process
    return process


class Rendering:
    """Renders records within limits; the template is also compiled within them."""

    def __init__(self, template: ChatTemplate, options: ChatOptions) -> None:
        self._make = partial(Renderer, template, options)
        self._renderer: Renderer | None = None

    def __call__(self, record: Mapping[str, Any]) -> list[Rendered] | ConversationError:
        limits = Limits()
        with limits:
            self._renderer = self._renderer or self._make(limits)
            (result,) = self._renderer.render_all([record])
        return result
