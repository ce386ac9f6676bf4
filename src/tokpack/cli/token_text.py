"""Tokens on a terminal: as a text, or one by one above their ids; trained ones are marked."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from tokpack.cli.figures import dim, green, width, wrapped
from tokpack.cli.terminal import is_coloured, put
from tokpack.display import shown
from tokpack.report.spelling import TokenText

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.report import Spelling

_COLOURS = ("\x1b[30;48;5;153m", "\x1b[30;48;5;223m")  # black on light blue, on light orange
_TRAINED = ("\x1b[30;48;5;120m", "\x1b[30;48;5;157m")  # on two greens
_UNTRAINED = ("\x1b[30;48;5;250m", "\x1b[30;48;5;254m")  # on two greys
_END = "\x1b[0m"
_BLANK = "\N{OPEN BOX}"


def text_of(ids: Sequence[int], spelling: Spelling | None) -> str:
    """What tokens stand for; without a tokenizer the ids."""
    return spelling.text(ids).decode("utf-8", "replace") if spelling else " ".join(map(str, ids))


def print_text(
    ids: Sequence[int], spelling: Spelling | None, trained: Sequence[int] | None = None
) -> None:
    """Print the text of tokens. With ``trained``, 1 for those that are, these are green.

    Where there are no colours, they stand in [[ ]].
    """
    runs = []
    for is_trained, run in groupby(zip(ids, trained or [0] * len(ids), strict=True), itemgetter(1)):
        lines = [shown(line) for line in text_of([token for token, _ in run], spelling).split("\n")]
        runs.append("\n".join(_marked(line) if is_trained and line else line for line in lines))
    text = ("" if spelling else " ").join(runs)
    for line in text.removesuffix("\n").split("\n"):
        for row in wrapped(line, width() - 2):
            put(f"  {row}")


def _marked(text: str) -> str:
    return green(text) if is_coloured() else f"[[{text}]]"


class _Cell(NamedTuple):
    """Some tokens at a time: their text, their ids, and whether a line of the document ends."""

    text: str
    ids: str
    ends: bool
    colours: tuple[str, str]


def print_tokens(
    ids: Sequence[int], spelling: Spelling | None, trained: Sequence[int] | None = None
) -> None:
    """Print tokens in alternating colours, their ids below; ``trained`` is 1 for those that are."""
    for line in _lines(_cells(ids, spelling, trained), width() - 2):
        for row in line:
            put(f"  {row}".rstrip())


def _cells(
    ids: Sequence[int], spelling: Spelling | None, trained: Sequence[int] | None
) -> Iterator[_Cell]:
    spelled = spelling.whole(ids) if spelling else [TokenText((token,), "") for token in ids]
    at = 0
    for some in spelled:
        numbers, colours = "+".join(map(str, some.ids)), _COLOURS
        if trained is not None:
            is_trained = any(trained[at : at + len(some.ids)])
            numbers += "*" if is_trained else ""
            colours = _TRAINED if is_trained else _UNTRAINED
        yield _Cell(shown(some.text), numbers, some.text.endswith("\n"), colours)
        at += len(some.ids)


def _lines(cells: Iterator[_Cell], columns: int) -> Iterator[list[str]]:
    """Rows of text over rows of ids, aligned, no wider than ``columns``."""
    from rich.cells import cell_len

    text_row, id_row, used, colour = "", "", 0, 0
    has_text = False
    for cell in cells:
        # A colour tells where a token ends; without colours a bar does, and blanks are seen.
        text = cell.text if is_coloured() else cell.text.replace(" ", _BLANK)
        size = max(cell_len(text), cell_len(cell.ids)) + 1
        if used and used + size > columns:
            yield [text_row, id_row] if has_text else [id_row]
            text_row, id_row, used = "", "", 0
        has_text = has_text or bool(text)
        blank = " " * (size - 1 - cell_len(text))
        if is_coloured():
            text_row += f"{cell.colours[colour]}{text}{_END}{blank} "
        else:
            text_row += f"{text}|{blank}"
        id_row += dim(cell.ids.ljust(size))
        used, colour = used + size, 1 - colour
        if cell.ends:
            yield [text_row, id_row]
            text_row, id_row, used = "", "", 0
    if used:
        yield [text_row, id_row] if has_text else [id_row]
