"""Conversations in every form of records: what becomes of them is what becomes of plain messages.

    python -m torture.chat_forms --seed 1 --minutes 5

A seed is a template and some talks, each as ShareGPT's, Alpaca's, prompt and completion, and
preferences with the prompt beside the answers, in them, and as texts of HH-RLHF. Of the messages
themselves it is known what is trained (`torture.conversations`). Then the pairs become a dataset,
whose samples are cut and packed.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from support.chat_twin import DATE, FAMILIES
from support.made_up_chats import ASSISTANT, USER, content_of, talk_of, template_of
from support.tiny_tokenizers import save, tiny

import tokpack
from tokpack.chat import ChatOptions, ConversationError
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate
from tokpack.errors import InputError, UsageError
from torture.conversations import said_by
from torture.made_up import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.chat import Rendered

Messages = list[dict[str, Any]]

_TALKS = 5
_SHAREGPT = {"user": "human", "assistant": "gpt", "system": "system", "tool": "tool"}
_ROOM = 200  # tokens of a sample


def _plain_talk(rng: random.Random) -> Messages:
    """Questions with answers, in texts, the last of which is an answer; none is of HH-RLHF."""
    talk = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        talk.append({"role": "user", "content": content_of(rng, USER)})
        talk.append({"role": "assistant", "content": _answer(rng)})
    return talk


def _answer(rng: random.Random) -> str:
    said = content_of(rng, ASSISTANT)
    return said if said.lstrip().partition(":")[0] not in ("Assistant", "Human") else "Well."


def _hh(talk: Messages) -> str | None:
    """The text of HH-RLHF for a talk; None where its messages cannot be told from others there."""
    text = ""
    for one in talk:
        said = one["content"]
        if said != said.strip() or not said or "\n\nHuman:" in said or "\n\nAssistant:" in said:
            return None
        text += f"\n\n{'Human' if one['role'] == 'user' else 'Assistant'}: {said}"
    return text


def single_forms(rng: random.Random) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Records of one conversation: their form, the record, and one of messages that is the same."""
    talk = said_by(talk_of(rng))
    if all(one["role"] in _SHAREGPT and "name" not in one for one in talk):
        turns = [
            {**{k: v for k, v in one.items() if k not in ("role", "content")},
             "from": _SHAREGPT[one["role"]], "value": one["content"]}
            for one in talk
        ]  # fmt: skip
        yield "sharegpt", {"conversations": turns}, {"messages": talk}
    yield "conversation", {"conversation": talk}, {"messages": talk}
    yield "text", {"messages": json.dumps(talk)}, {"messages": talk}
    talk = _plain_talk(rng)
    said = [one["content"] for one in talk]
    history = [list(pair) for pair in zip(said[:-2:2], said[1:-2:2], strict=True)]
    record = {"instruction": said[-2], "output": said[-1], "history": history}
    if said[-2]:
        yield "alpaca", record, {"messages": talk}
        more = content_of(rng, USER)
        asked = {**talk[-2], "content": f"{said[-2]}\n{more}" if more else said[-2]}
        yield (
            "alpaca with input",
            {**record, "input": more},
            {"messages": [*talk[:-2], asked, talk[-1]]},
        )
    cut = rng.randrange(1, len(talk))
    before = [{**one, "train": False} for one in talk[:cut]]
    halves = {"prompt": talk[:cut], "completion": talk[cut:]}
    yield "completion", halves, {"messages": [*before, *talk[cut:]]}
    if len(talk) == 2:
        yield "texts", {"prompt": said[0], "completion": said[1]}, {"messages": talk}


def pair_forms(rng: random.Random) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Records of pairs: their form, the record, and a record of messages for each answer."""
    *before, one = _plain_talk(rng)
    answers = [one, {**one, "content": _answer(rng)}]
    rng.shuffle(answers)
    if answers[0] == answers[1]:
        return
    system = [{"role": "system", "content": "Be kind."}] * (rng.random() < 0.3)
    known = [{**one, "train": False} for one in [*system, *before]]
    expected = [{"messages": [*known, answer]} for answer in answers]
    both = dict(zip(("chosen", "rejected"), answers, strict=True))
    every = [*system, *before]
    yield "pair", {"prompt": every, **{k: [v] for k, v in both.items()}}, expected
    yield "pair alone", {"prompt": every, **both}, expected
    yield "pair of texts", {"prompt": every, **{k: v["content"] for k, v in both.items()}}, expected
    whole = {k: [*every, v] for k, v in both.items()}
    yield "whole pair", whole, expected
    yield "whole pair with prompt", {"prompt": every, **whole}, expected
    other = [{"from": _SHAREGPT[one["role"]], "value": one["content"]} for one in every]
    yield "whole pair with prompt of ShareGPT", {"prompt": other, **whole}, expected
    if len(before) == 1:
        asked = before[0]["content"]
        yield "whole pair with its question", {"prompt": asked, **whole}, expected
    texts = {k: _hh([*before, v]) for k, v in both.items()}
    if not system and None not in texts.values():
        yield "hh-rlhf", texts, expected
        asked_in_hh = f"{_hh(before)}\n\nAssistant:"
        yield "hh-rlhf with prompt", {"prompt": asked_in_hh, **texts}, expected


def _by_arrow(record: dict[str, Any]) -> dict[str, Any]:
    """The record as parquet gives it, each message with the keys of all, or as it is."""
    try:
        return dict(pa.Table.from_pylist([record]).to_pylist()[0])
    except (pa.ArrowException, UnicodeEncodeError):
        return record


def _rendered(renderer: Renderer, record: dict[str, Any]) -> list[Rendered] | str:
    try:
        return renderer.render(record)
    except ConversationError as error:
        return error.reason


def _template(rng: random.Random) -> ChatTemplate:
    if rng.random() < 0.5:
        made = template_of(rng)
        return ChatTemplate(made.source, made.tokens)
    family = rng.choice(FAMILIES)
    return ChatTemplate(family.source, family.tokens)


def check(seed: int) -> Iterator[str]:
    """Compare one seed: what came of each record. AssertionError with all that repeats it."""
    rng = random.Random(seed)
    template = _template(rng)
    options = {"variables": {"date": DATE}, "rewriting": rng.choice(["refuse", "as-is"])}
    options["loss"] = rng.choice(["assistant", "assistant", "last"])
    try:
        renderer = Renderer(template, ChatOptions(**options))
        of_pairs = Renderer(template, ChatOptions(**options, pairs=("chosen", "rejected")))
    except UsageError:
        yield "no template"
        return
    pairs: list[dict[str, Any]] = []
    rows: list[Rendered] = []
    for _ in range(_TALKS):
        for form, record, plain in single_forms(rng):
            found, expected = _rendered(renderer, record), _rendered(renderer, plain)
            assert found == expected, (seed, form, record, template.source, found, expected)
            assert _rendered(renderer, _by_arrow(record)) == found, (seed, form, record)
            yield form if isinstance(found, list) else found
        for form, record, sides in pair_forms(rng):
            found = _rendered(of_pairs, record)
            each = [_rendered(renderer, one) for one in sides]
            wrong = [one for one in each if isinstance(one, str)]
            flat = wrong[0] if wrong else [made for one in each for made in one]
            assert found == flat, (seed, form, record, template.source, found, flat)
            assert _rendered(of_pairs, _by_arrow(record)) == found, (seed, form, record)
            yield form if isinstance(found, list) else found
            if isinstance(found, list):
                pairs.append(record)
                rows += found
    if pairs and rng.random() < 0.4:
        with tempfile.TemporaryDirectory() as folder:
            yield _dataset(
                seed, Path(folder), template=template, options=options, pairs=pairs, rows=rows
            )


def _dataset(
    seed: int,
    folder: Path,
    *,
    template: ChatTemplate,
    options: dict[str, Any],
    pairs: list[dict[str, Any]],
    rows: list[Rendered],
) -> str:
    """Pairs as a dataset, there and back, in samples."""
    save(folder, tiny())
    config = {"chat_template": template.source, **(template.tokens or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    source = folder / "pairs.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in pairs))
    chosen = {"loss": options["loss"], "rewriting": options["rewriting"]}
    try:
        tokpack.encode(
            source, folder / "pairs", tokenizer=folder, chat=True, pairs=("chosen", "rejected"),
            template_var=options["variables"], on_error="skip", workers=1, **chosen,
        )  # fmt: skip
    except InputError:
        return "no pairs"
    data = tokpack.MMapIndexedDataset(folder / "pairs")
    assert data.mask is not None
    library = tokpack.load_tokenizer(folder)
    kept = [
        one
        for two in zip(rows[::2], rows[1::2], strict=True)
        if all(made.trained for made in two)
        for one in two
    ]
    assert [library.decode(ids) for ids in data] == [one.text for one in kept], seed
    _samples(folder / "pairs", data, seed)
    return "a dataset"


def _samples(prefix: Path, data: tokpack.MMapIndexedDataset, seed: int) -> None:
    """Pairs follow each other, cut off; packed, each conversation is somewhere, with its mask."""
    assert data.mask is not None
    in_pairs = tokpack.GPTDataset(prefix, _ROOM, packing="pairs")
    expected = []
    for i, ids in enumerate(data):
        row, mask = ids.tolist()[: _ROOM + 1], data.mask[i].tolist()[: _ROOM + 1]
        expected.append((row[1:], mask[1:]))
    order = list(range(len(data)))
    found = [_labels(in_pairs[k], len(expected[int(in_pairs.locate(k)[0, 0])][0])) for k in order]
    places = [int(in_pairs.locate(k)[0, 0]) for k in order]
    assert sorted(places) == order, seed
    assert all(b == a + 1 and a % 2 == 0 for a, b in zip(places[::2], places[1::2], strict=True))
    assert found == [expected[place] for place in places], seed

    longest = max(len(ids) for ids in data)
    packed = tokpack.GPTDataset(prefix, longest, packing="best_fit")
    assert packed.packing_stats is not None
    whole = [tuple(map(tuple, (ids.tolist()[1:], data.mask[i].tolist()[1:])))
             for i, ids in enumerate(data)]  # fmt: skip
    pieces: list[Any] = []
    for k in range(packed.packing_stats.samples):
        sample = packed[k]
        for begin, end in zip(sample["cu_seqlens"][:-1], sample["cu_seqlens"][1:], strict=True):
            labels, mask = (sample[name][begin:end].tolist() for name in ("labels", "loss_mask"))
            pieces.append((labels, [int(one) for one in mask]))
    left = Counter(whole)
    for labels, mask in pieces:
        for size in (len(labels) - 1, len(labels)):  # a last label is the next document's, or pad
            one = (tuple(labels[:size]), tuple(mask[:size]))
            if left[one]:
                left[one] -= 1
                assert not any(mask[size:]), seed
                break
    assert not +left, (seed, +left)


def _labels(sample: Any, count: int) -> tuple[list[int], list[int]]:
    mask = np.asarray(sample["loss_mask"])
    assert not mask[count:].any()
    return sample["labels"][:count].tolist(), mask[:count].astype(int).tolist()


if __name__ == "__main__":
    rounds(check, __doc__)
