"""Conversations on their way to arrays: rendered, encoded with their masks, cut to length."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.apart import Limits, apart
from tokpack.chat import (
    NO_NUMBER,
    OUTSIDE,
    ChatOptions,
    ChatTemplate,
    ConversationError,
    Renderer,
    detect,
    load_template,
    number_of,
    pairs_in,
    utf8,
)
from tokpack.dataset.manifest import ROLES
from tokpack.display import brief
from tokpack.encoding.makers import SAID_COLUMNS, EncodedDocuments
from tokpack.errors import InputError, option
from tokpack.quantities import counted
from tokpack.sources import (
    RAW_BYTES_KEPT,
    BadRecord,
    DocumentBatch,
    Documents,
    as_text,
    documents_of,
    of_objects,
    value_at,
)
from tokpack.tokenizers import DocumentsError, MarkedIds, MarkingEncoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tokpack.chat import Rendered
    from tokpack.encoding.first_records import FirstInputs
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.setup import TokenizerSetup
    from tokpack.tokenizers import Frame, Tokenizer

TOO_LONG = "too long"
UNTRAINED = "nothing is trained"
CUT_OFF = "what is trained is cut off"
OTHER_OF_PAIR = "the other of its pair is left out"
_MIXED = "a pair of answers"
SAME = "both answers of the pair are the same"
NOT_GOOD = "labelled as no good answer"
_LABELS = ("label", "kto_tag")  # KTO's label in TRL and ms-swift, and in LLaMA-Factory
_ANSWER = "{}"  # in a key that pairs keep, it stands for the key of each answer
_CHECKED = 1 << 16  # characters that are also encoded by the library, to compare
_SHOWN = 40  # keys in a message
_NUMBERS = {role: number for number, role in enumerate(ROLES)}


def _numbered(turns: Sequence[tuple[int, int, str]]) -> list[tuple[int, int]]:
    """The parts of a text, turns and the text between them: (first character, role number).

    The number is 0 between turns. Turns may overlap by a token that ends one and begins the next,
    such as GLM's <|user|>: it belongs to the turn that it ends.
    """
    parts, end = [], 0
    for begin, until, role in turns:
        if begin > end:
            parts.append((end, 0))
        if until > end:
            parts.append((max(begin, end), _NUMBERS.get(role, 0)))
            end = until
    return [*parts, (end, 0)]


def settled_chat(
    options: EncodeOptions, tokenizer: Tokenizer, first: FirstInputs
) -> dict[str, Any]:
    """The entries for conversations in a plan, as JSON values: all that determines text and mask.

    UsageError if there is no usable template, InputError if none of the first records has a
    conversation.
    """
    chat, records = options.conversations, first.records
    form = detect(records, chat)
    if records and not form:
        keys = ", ".join(map(str, list(records[0])[:_SHOWN])) or "none"
        raise InputError(
            f"none of the first {counted(len(records), 'record')} has a conversation: their keys "
            f"are {keys}; name the key of the messages with {option('messages_key')}"
        )
    if chat.pairs is None and "pairs" in form:
        found = pairs_in(records)
        if form != "pairs" or len(found) > 1:
            names = [form, *(" and ".join(keys) for keys in found)]
            raise InputError(
                f"the first records are {', '.join(names)}: encode each kind into a dataset of its "
                f"own, pairs with {option('pairs')}"
            )
        chat = replace(chat, pairs=found[0])
    template = load_template(tokenizer, chat)
    chat = replace(chat, template=None)
    identity = apart(f"{template.where}: the chat template", _identity, template, chat)
    return {
        **asdict(chat),
        **identity,
        "variables": dict(chat.variables),
        "pairs": list(chat.pairs) if chat.pairs else None,
        "form": form,
        # Earlier versions kept nulls in structs of tables, which gives other tokens. This entry
        # distinguishes their datasets.
        **({"struct_nulls": "left out"} if any(one.is_table for one in first.inputs) else {}),
        "template": template.source,
        "tool_use": template.tool_use,
        "tokens": dict(template.tokens) if template.tokens is not None else None,
    }


def _identity(template: ChatTemplate, options: ChatOptions) -> dict[str, Any]:
    """What a renderer learns about the template by trials."""
    with Limits():
        return Renderer(template, options).identity()


def pair_keys(chat: ChatOptions, records: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """The keys of the two answers of a pair: as requested, else as in the first records."""
    return chat.pairs or next(iter(pairs_in(records)), ())


class ConversationMaker:
    """Renders the records of batches, and encodes them with their masks.

    ``settled`` is what ``settled_chat`` returned; ``limits`` are those of the process.
    """

    is_seen = False  # documents are made here

    def __init__(
        self,
        settled: Mapping[str, Any],
        options: EncodeOptions,
        setup: TokenizerSetup,
        limits: Limits,
    ) -> None:
        self._settled, self._setup, self._limits = settled, setup, limits
        self._pair: Sequence[str] | None = settled["pairs"]
        names = {one.name for one in fields(ChatOptions)} - {"template", "pairs"}
        pairs = tuple(self._pair) if self._pair else None
        chat = ChatOptions(**{name: settled[name] for name in names}, pairs=pairs)
        where = f"tokenizer {setup.tokenizer.name}"
        template = ChatTemplate(settled["template"], settled["tokens"], settled["tool_use"], where)
        with limits:
            self._renderer = Renderer(template, chat, limits)
        self._split = settled["rewriting"] == "split"
        self._of_assistant = settled["loss"] in ("assistant", "last")
        self._kept = tuple(options.kept.values())
        told = (*self._kept, settled["weight_key"])
        self._labels = [key for key in _LABELS if self._pair is None and key not in told]
        self._key = options.keys[0]
        self._encoder = MarkingEncoder(setup.tokenizer, dtype=setup.dtype, frame=setup.frame)

    def documents(self, batches: Iterable[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The batches with documents; records without a conversation become bad records."""
        for batch in batches:
            with self._limits:
                self._make(batch)
            yield batch

    def check(self, documents: Documents) -> None:
        """Compare ids and masks of the first conversations with the library's. TokenizerError."""
        rendered: list[Rendered] = documents.whole
        sizes = np.cumsum([len(one.text) for one in rendered])
        first = rendered[: max(int(np.searchsorted(sizes, _CHECKED)), 1)]
        self._encoder.check([one.text for one in first], [one.trained for one in first])

    def encode(self, documents: Documents) -> EncodedDocuments:
        """Ids and masks of the conversations that are short enough and have a trained token."""
        rendered: list[Rendered] = documents.whole
        texts, spans = [one.text for one in rendered], [one.trained for one in rendered]
        turns = [_numbered(one.turns) for one in rendered]
        data = documents.data.data, documents.spans
        try:
            encoded = self._encoder.encode(texts, spans, data, turns)
        except DocumentsError as error:
            if self._pair is None:
                raise
            # An answer is useless without the other one of its pair.
            others = {number ^ 1: OTHER_OF_PAIR for number in error.reasons}
            raise DocumentsError({**others, **error.reasons}) from None
        frame = self._setup.frame
        conversations, kept, unfit, truncated = fit(
            documents,
            encoded,
            max_length=self._settled["max_length"],
            truncate=self._settled["truncate"],
            in_pairs=self._pair is not None,
            frame=frame,
        )
        values = [kept.mask, kept.parts]
        if self._settled["weight_key"] is not None:
            weights = np.array([one.weight for one in conversations.whole], np.float16)
            values.insert(1, np.repeat(weights, kept.lengths))
        counts = said(conversations, kept, frame)
        counts |= {"mapped_out": len(unfit), "truncated": truncated}
        lengths, sequences = kept.lengths, (kept.lengths > 0).astype(np.int32)
        arrays = kept.ids, lengths, sequences, kept.special
        return EncodedDocuments(conversations, *arrays, values, unfit, counts)

    def _make(self, batch: DocumentBatch) -> None:
        rows = batch.first
        conversations: list[Rendered] = []
        texts: list[bytes] = []
        lines: list[int] = []
        values: list[list[Any]] = []
        bad = []
        records, numbers = rows.whole or (), rows.lines.tolist()
        every = self._renderer.render_all(records, [number + 1 for number in numbers])
        for record, line, made in zip(records, numbers, every, strict=True):
            try:
                rendered = self._checked(made)
                for key in self._labels:
                    _check_label(record, key)
                encoded = [utf8(one.text) for one in rendered]
                values += [self._values(record, number) for number in range(len(rendered))]
            except ConversationError as error:
                bad.append(bad_record(record, line, error.reason, error.text))
                continue
            conversations += rendered
            texts += encoded
            lines += [line] * len(rendered)
        columns = {key: of_objects([row[i] for row in values]) for i, key in enumerate(self._kept)}
        documents = documents_of(texts, np.array(lines, np.int64), columns, conversations)
        batch.documents = {self._key: documents}
        batch.counts["mapped_in"] = len(conversations) - (len(records) - len(bad))
        batch.bad = sorted([*batch.bad, *bad], key=lambda record: record.line)

    def _values(self, record: Mapping[str, Any], number: int) -> list[Any]:
        """The kept values of document ``number`` of a record, in the order of the keys.

        For a pair, ``{}`` in a key stands for the key of the document's answer.
        """
        values = []
        for key in self._kept:
            if self._pair is None or _ANSWER not in key:
                values.append(value_at(record, key))
                continue
            key = key.replace(_ANSWER, self._pair[number])  # noqa: PLW2901
            value = value_at(record, key)
            if value is not None and not isinstance(value, Real):
                raise ConversationError(NO_NUMBER, f"{key} is {brief(value)}")
            values.append(None if value is None else number_of(value, key))
        return values

    def _checked(self, rendered: list[Rendered] | ConversationError) -> list[Rendered]:
        """The conversations of a record, checked. ConversationError."""
        if isinstance(rendered, ConversationError):
            raise rendered
        if self._pair is None and len(rendered) != 1 and not self._split:
            raise ConversationError(_MIXED, "the first records of the inputs are not pairs")
        if self._of_assistant:
            for one in rendered:
                _check_turns(one)
        return rendered


def _check_label(record: Mapping[str, Any], key: str) -> None:
    """Refuse an answer that is labelled as bad, unless the label is used.

    The label is not in the text, so the answer would be trained like a good one. In CSV it is a
    text.
    """
    told = str(record.get(key)).lower()
    if told == "false" or (told in ("0", "0.0") and "completion" in record):
        raise ConversationError(
            NOT_GOOD,
            f"its {key} is {record[key]}, but it would be trained like a good answer: "
            f"leave such records out with {option('where', f'{key}::bool')}, or keep it beside the "
            f"document, for a trainer that reads it, with {option('keep', key)}",
        )


def _check_turns(rendered: Rendered) -> None:
    """Refuse a conversation with trained text outside the assistant's turns."""
    if not rendered.turns:
        return  # the template does not show them
    turns = [(begin, end) for begin, end, role in rendered.turns if role == "assistant"]
    at = 0
    for begin, end in rendered.trained:
        while at < len(turns) and turns[at][1] <= begin:
            at += 1
        if at == len(turns) or begin < turns[at][0] or end > turns[at][1]:
            text = rendered.text[begin:end][:_SHOWN]
            raise ConversationError(
                OUTSIDE, f"{text!r} at character {begin} is not in an assistant turn"
            )


def bad_record(record: Any, line: int, kind: str, reason: str) -> BadRecord:
    """A record as a bad record, with its beginning as JSON."""
    try:
        raw = as_text(record)[:RAW_BYTES_KEPT]
    except Exception:  # values without a JSON form may raise anything
        raw = f"<{type(record).__name__}>".encode()
    return BadRecord(line, reason, raw, kind=kind)


def said(documents: Documents, encoded: MarkedIds, frame: Frame) -> dict[str, int]:
    """The counts of encoded conversations, by the names of SAID_COLUMNS."""
    by_role = encoded.parts.astype(np.int64) * 2 + encoded.mask
    counts = np.bincount(by_role, minlength=2 * len(ROLES)).reshape(-1, 2)
    counts[:, 0] += counts[:, 1]  # trained tokens are tokens
    rendered: list[Rendered] = documents.whole
    merged = 0
    if encoded.merged.any():  # count answers only, not spans after thinking or calls
        begins = [begin in one.begins for one in rendered for begin, _ in one.trained]
        merged = int(np.count_nonzero(encoded.merged & np.array(begins, np.bool_)))
    of_texts = [
        sum(one.thoughts_unwritten for one in rendered),
        sum(one.messages_unwritten for one in rendered),
        sum(one.contents_unwritten for one in rendered),
        sum(len(one.begins) for one in rendered),
        sum(one.stops_untrained for one in rendered),
        merged,
        int(np.count_nonzero(_doubled(encoded, frame))),
    ]
    return dict(zip(SAID_COLUMNS, counts.ravel().tolist() + of_texts, strict=True))


def _doubled(encoded: MarkedIds, frame: Frame) -> npt.NDArray[np.bool_]:
    """For each document, whether its text begins or ends with a token that the frame adds too.

    The token is there twice then: the template writes it as well.
    """
    before, after = len(frame.before), len(frame.after)
    ends = np.cumsum(encoded.lengths, dtype=np.int64)
    first, last = ends - encoded.lengths + before, ends - after - 1
    doubled = np.zeros(len(ends), np.bool_)
    inside = first <= last
    if before:
        doubled[inside] = encoded.ids[first[inside]] == frame.before[-1]
    if after:
        doubled[inside] |= encoded.ids[last[inside]] == frame.after[0]
    return doubled


def fit(
    documents: Documents,
    encoded: MarkedIds,
    *,
    max_length: int | None,
    truncate: str,
    in_pairs: bool,
    frame: Frame,
) -> tuple[Documents, MarkedIds, list[BadRecord], int]:
    """Cut conversations to ``max_length`` tokens or leave them out; leave out untrained ones.

    Returns the conversations that stay, those left out, and how many were cut. ``truncate`` is
    "drop" to leave out long ones, or "left" or "right" for the side to cut; the tokens of ``frame``
    stay. With ``in_pairs`` consecutive documents are the two answers of a pair: both are left out
    if one is, or if they are equal.
    """
    lengths = encoded.lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    # A document keeps the tokens [begin, first) and [last, end).
    first, last, too_long = ends, ends, np.zeros(len(lengths), np.bool_)
    if max_length is not None:
        too_long = lengths > max_length
        behind = len(frame.after) if truncate == "right" else max_length - len(frame.before)
        behind = min(max(behind, 0), max_length)
        first = np.where(too_long, begins + max_length - behind, ends)
        last = np.where(too_long, ends - behind, ends)
    before = np.concatenate(([0], np.cumsum(encoded.mask, dtype=np.int64)))
    untrained = before[ends] - before[last] + before[first] == before[begins]
    is_cut = too_long & (truncate != "drop")
    out = untrained | (too_long & ~is_cut)
    same = np.zeros(len(lengths), np.bool_)
    if in_pairs:
        same = _same(encoded.ids, begins, first, last, ends)
        out |= same | out.reshape(-1, 2)[:, ::-1].reshape(-1)
    if not out.any() and not is_cut.any():
        return documents, encoded, [], 0
    unfit = []
    for i in np.flatnonzero(out).tolist():
        if too_long[i] and not is_cut[i]:
            kind, reason = TOO_LONG, f"{TOO_LONG}: {lengths[i]} tokens, more than {max_length}"
        elif untrained[i] or same[i]:
            kind = CUT_OFF if untrained[i] and is_cut[i] else SAME if same[i] else UNTRAINED
            reason = f"{kind}: {lengths[i]} tokens"
        else:
            kind = reason = OTHER_OF_PAIR
        text = documents.text(i)[:RAW_BYTES_KEPT]
        unfit.append(BadRecord(int(documents.lines[i]), reason, text, kind=kind))
    # The kept tokens, without a loop over documents: +1 where a kept range begins, -1 where it
    # ends; a token is kept where the running sum is 1.
    stays = ~out
    steps = np.zeros(len(encoded.ids) + 1, np.int32)
    for places, step in ((begins, 1), (first, -1), (last, 1), (ends, -1)):
        np.add.at(steps, places[stays], step)
    tokens = np.cumsum(steps[:-1]) > 0
    special = np.searchsorted(np.flatnonzero(stays), encoded.special[stays[encoded.special]])
    kept = MarkedIds(
        encoded.ids[tokens],
        (first - begins + ends - last)[stays].astype(np.int32),
        encoded.mask[tokens],
        special,
        encoded.parts[tokens],
        encoded.merged[np.repeat(stays, [len(one.trained) for one in documents.whole])],
    )
    return documents.select(stays), kept, unfit, int((is_cut & stays).sum())


def _same(ids: npt.NDArray[Any], *places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """For each document of a pair, whether the other answer has the same tokens.

    ``places`` are begins, first, last and ends as in `fit`: a document keeps [begin, first) and
    [last, end).
    """
    rows = np.stack(places, axis=1).reshape(-1, 2, 4)
    sizes = np.diff(rows, axis=2)[:, :, ::2]
    same = (sizes[:, 0] == sizes[:, 1]).all(axis=1)
    for i in np.flatnonzero(same).tolist():
        (b0, f0, l0, e0), (b1, f1, l1, e1) = rows[i].tolist()
        is_equal = np.array_equal(ids[b0:f0], ids[b1:f1])
        same[i] = is_equal and np.array_equal(ids[l0:e0], ids[l1:e1])
    return np.repeat(same, 2)
