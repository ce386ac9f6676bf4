"""The first conversations of a request, with what is trained of them: encode --dry-run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli.figures import bold, dim
from tokpack.cli.summary import chat_notes
from tokpack.cli.terminal import put
from tokpack.cli.token_text import print_text
from tokpack.encoding.conversations import sample
from tokpack.quantities import counted
from tokpack.report import Spelling

if TYPE_CHECKING:
    from tokpack.encoding import EncodeOptions

_SHOWN = 3  # conversations


def print_sample(options: EncodeOptions) -> None:
    """Print some of the first conversations, and what becomes of all of the first ones.

    Raises as encode does before any work.
    """
    samples = sample(options)
    chat, tokenizer = samples.settled, samples.tokenizer
    spelling = Spelling(tokenizer)
    trained = sum(int(one.mask.sum()) for one in samples.conversations)
    tokens = sum(len(one.ids) for one in samples.conversations)
    put(
        f"conversations: {chat['form']}; loss on {chat['loss']}, template of "
        f"{options.chat_template or tokenizer.name}; "
        f"special tokens as ids, {'an' if options.append_eod else 'no'} EOD behind"
    )
    records = counted(samples.records, "record")
    put(
        f"of the first {records}: {counted(len(samples.conversations), 'conversation')}, "
        f"{counted(tokens, 'token')}, {trained / max(tokens, 1):.1%} of them trained"
    )
    for kind, count in samples.reasons.items():
        put(f"  left out: {kind} ({count:,})")
    for name, text in chat_notes(samples.counts):
        put(f"  {name}: {text}")
    for number, one in enumerate(samples.conversations[:_SHOWN], 1):
        put()
        many = f"{counted(len(one.ids), 'token')}, {int(one.mask.sum()):,} trained"
        put(bold(f"conversation {number}: {many}"))
        print_text(one.ids.tolist(), spelling, one.mask.tolist())
    put()
    put(dim("nothing was written: leave out --dry-run to encode"))
