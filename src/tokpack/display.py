"""Foreign text (documents, names, messages of libraries), made safe to show.

Everything that is printed on a terminal passes ``shown``, in ``tell`` or before; tokpack's own
colours are added after that.
"""

from __future__ import annotations

import contextlib
import os
import reprlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MOST_CHARACTERS = 4000  # of one message


def shown(text: str | bytes, *, limit: int = 0, keep: str = "") -> str:
    """Text on one line, without anything that a terminal or a page would obey.

    Characters that are not printable (controls, escapes, direction marks, lone surrogates) and not
    in ``keep`` are written as Python writes them. With a ``limit`` the rest of a longer text
    becomes an ellipsis.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if limit and len(text) > limit:
        text = text[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


# Names of our options, then their names in datasets, transformers, TRL, datatrove and others.
_OF_OTHERS = """
    json_keys keys: text_key text_column text_column_name text_field dataset_text_field content_key
    workers nproc: num_proc dataset_num_proc num_workers preprocessing_num_workers jobs tasks
    limit: max_samples max_train_samples
    overwrite: force overwrite_output_dir overwrite_cache exist_ok
    debug: verbose
    output save: output_dir output_folder output_path out save_dir
    tokenizer: tokenizer_name model_name_or_path
    eod_token: eos_token
    input_format: format file_type
    train_iters: max_steps num_steps total_steps
    train_epochs: num_train_epochs epochs
    lr: learning_rate
    micro_batch_size: per_device_train_batch_size
    seq_length: max_seq_length max_seq_len block_size sequence_length context_length
"""
_ALIKE = 0.7  # the least similarity of a suggestion


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The known word that ``word`` is most likely meant to be, or None."""
    import difflib

    def plain(text: str) -> str:
        return text.lstrip("-").replace("-", "_").lower()

    known = {plain(one): one for one in words}
    for row in _OF_OTHERS.strip().splitlines():
        names, _, theirs = row.partition(":")
        if plain(word) in theirs.split():
            for name in names.split():
                if name in known:
                    return known[name]
    matches = difflib.get_close_matches(plain(word), known, n=1, cutoff=_ALIKE)
    return known[matches[0]] if matches else None


def _escape(char: str) -> str:
    return _NAMED.get(char) or repr(char)[1:-1]


def message(text: str) -> str:
    """A message as a line of bounded length."""
    return shown(text, limit=_MOST_CHARACTERS)


def tell(text: str, *, before: str = "") -> None:
    """Write a line to stderr; ``before`` is written as it is. A closed stderr is no error."""
    try:
        with contextlib.suppress(ValueError):  # it is closed
            print(before + shown(text), file=sys.stderr, flush=True)
    except BrokenPipeError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Discard output to a stream that nobody reads.

    Otherwise the interpreter would flush it at exit, and fail.
    """
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


def data_text(text: str) -> str:
    """Text for stdout: as it is for a program, ``shown`` to a person.

    Lines stay lines.
    """
    return shown(text, keep="\n\t") if sys.stdout.isatty() else text


DRAWN_BY: list[Callable[[object], str | None]] = []  # set by the package


def drawn(thing: object) -> str | None:
    """``_repr_html_``: HTML for notebooks, see ``tokpack.look.page.notebook``; None for plain text.

    A class that is below ``look`` has it by ``_repr_html_ = drawn``.
    """
    return DRAWN_BY[0](thing) if DRAWN_BY else None


class _Brief(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > _MOST_BITS:  # Python writes no more than 4,300 digits
            return f"an integer of {x.bit_length():,} bits"
        return super().repr_int(x, level)


_MOST_BITS = 10_000  # of an integer whose digits are counted to cut them
_BRIEF = _Brief()
_BRIEF.maxlevel, _BRIEF.maxlong, _BRIEF.maxstring, _BRIEF.maxother = 4, 50, 300, 300
_BRIEF.maxdict = _BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxset = 12


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def brief(value: object) -> str:
    """A foreign value as Python writes it, cut if it is long or deep."""
    text = _BRIEF.repr(value)
    return text if len(text) <= 600 else text[:599] + "\N{HORIZONTAL ELLIPSIS}"
