"""The first conversations of a request, with what is trained of them: encode --dry-run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli.figures import bold, dim, green
from tokpack.cli.terminal import is_coloured, put
from tokpack.display import shown
from tokpack.encoding.conversations import Sample, sample
from tokpack.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.encoding import EncodeOptions
    from tokpack.tokenizers import Tokenizer

_SHOWN = 3  # conversations
_MARKS = ("[[", "]]")  # around what is trained, where there are no colours


def print_sample(options: EncodeOptions) -> None:
    """Print some of the first conversations, and what becomes of all of the first ones.

    Raises as encode does before any work.
    """
    found = sample(options)
    chat, tokenizer = found.settled, found.tokenizer
    trained = sum(int(one.mask.sum()) for one in found.made)
    tokens = sum(len(one.ids) for one in found.made)
    put(
        f"conversations: {chat['form']}; loss on {chat['loss']}, template of {tokenizer.name}; "
        f"special tokens as ids, {'an' if options.append_eod else 'no'} EOD behind"
    )
    records = counted(found.records, "record")
    put(
        f"of the first {records}: {counted(len(found.made), 'conversation')}, "
        f"{counted(tokens, 'token')}, {trained / max(tokens, 1):.1%} of them trained"
    )
    for kind, count in found.reasons.items():
        put(f"  left out: {kind} ({count:,})")
    for number, one in enumerate(found.made[:_SHOWN], 1):
        put()
        many = f"{counted(len(one.ids), 'token')}, {int(one.mask.sum()):,} trained"
        put(bold(f"conversation {number}: {many}"))
        for line in _lines(tokenizer, one):
            put(line)
    put()
    put(dim("nothing was written: leave out --dry-run to encode"))


def _lines(tokenizer: Tokenizer, one: Sample) -> Iterator[str]:
    """The text that the tokens stand for, with marks around those that are trained."""
    text = ""
    begin = 0
    ids, mask = one.ids.tolist(), one.mask.tolist()
    for end in range(1, len(ids) + 1):
        if end < len(ids) and mask[end] == mask[begin]:
            continue
        part = tokenizer.decode(ids[begin:end])
        lines = [shown(line) for line in part.split("\n")]
        text += "\n".join(_marked(line) if mask[begin] and line else line for line in lines)
        begin = end
    yield from (f"  {line}" for line in text.split("\n"))


def _marked(text: str) -> str:
    return green(text) if is_coloured() else f"{_MARKS[0]}{text}{_MARKS[1]}"
