"""Conversations become the tokens and masks that a plain twin finds one by one."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.chatml_twin import RECORDS, TEMPLATE, Chats, conversations, rendered, write_records
from support.encoding_tools import EOD, dataset, drive
from support.small_parts import in_small_parts
from support.stopped_runs import PART_BYTES, STOP_AT_END, stop_at_part, stop_at_rename

import tokpack
from tokpack.errors import RecordError, WorkerError

if TYPE_CHECKING:
    from pathlib import Path


pytest.importorskip("jinja2")


# What is encoded.


@pytest.mark.parametrize("workers", [1, 3])
def test_json_lines(chats: Chats, workers: int, small_parts: None) -> None:
    records = conversations(150, words=400) if workers > 1 else RECORDS
    manifest = chats.encode(records, workers=workers)
    chats.right(records)
    assert manifest.options["append_eod"] is False
    assert manifest.options["special_tokens"] == "encode"


def test_every_source(chats: Chats, bpe: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    import zstandard

    lines = write_records(chats.folder / "plain.jsonl", RECORDS)
    packed = chats.folder / "a.jsonl.zst"
    packed.write_bytes(zstandard.compress(lines.read_bytes()))
    array = chats.folder / "a.json"
    array.write_text(json.dumps(RECORDS))
    table = arrow.Table.from_pylist(RECORDS)
    parquet.write_table(table, chats.folder / "a.parquet", row_group_size=20)
    with arrow.ipc.new_file(chats.folder / "a.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=20)
    sources = [packed, array, chats.folder / "a.parquet", chats.folder / "a.arrow"]
    sources += [iter(RECORDS), table, table.to_reader()]
    for source in sources:
        chats.encode(source, overwrite=True)
        chats.right(RECORDS)


def test_a_run_that_is_stopped(chats: Chats) -> None:
    records = conversations(250, words=80)
    source = write_records(chats.folder / "in.jsonl", records)
    options = {"inputs": str(source), "output": str(chats.output), "workers": 1, "chat": True}
    request = {**options, "tokenizer": str(chats.tokenizer)}
    killed = -signal.SIGKILL
    for script, code in (
        (stop_at_part(3), WorkerError.exit_code),  # its worker, not the run
        (STOP_AT_END, killed),
        (stop_at_rename(1), killed),
    ):
        done = drive(request, script)
        assert done.returncode == code, done.stderr
        with in_small_parts(PART_BYTES):
            chats.encode(source)
            chats.right(records)
        for path in chats.folder.glob("out*"):
            path.unlink()


def test_another_request_does_not_go_on(chats: Chats) -> None:
    chats.encode(RECORDS)
    before = dataset(chats.output)
    assert chats.encode(RECORDS).created == tokpack.Manifest.load(chats.output).created
    with pytest.raises(tokpack.OutputError, match=r"\bloss = 'assistant', .*'last'"):
        chats.encode(RECORDS, loss="last")
    assert dataset(chats.output) == before


def test_options_that_choose_what_is_trained(chats: Chats) -> None:
    messages = [
        {"role": "user", "content": "the of"},
        {"role": "assistant", "content": "and"},
        {"role": "user", "content": "in"},
        {"role": "assistant", "content": "was"},
    ]
    tokenizer = tokpack.load_tokenizer(chats.tokenizer)

    def trained(**options: Any) -> str:
        chats.encode([{"messages": messages}], overwrite=True, **options)
        ((ids, mask),) = chats.rows()
        return tokenizer.decode(
            [one for one, is_trained in zip(ids, mask, strict=True) if is_trained]
        )

    assert trained() == "and<|im_end|>was<|im_end|>"
    assert trained(loss="last") == "was<|im_end|>"
    assert trained(loss_on_eot=False) == "andwas"
    assert trained(loss="user") == "the of<|im_end|>in<|im_end|>"
    assert trained(loss="all") == rendered(messages)[0]


def test_frames_are_asked_for(chats: Chats) -> None:
    chats.encode(RECORDS[:2], append_eod=True)
    eod = tokpack.load_tokenizer(chats.tokenizer).token_to_id(EOD)
    rows = chats.twin.rows([one["messages"] for one in RECORDS[:2]])
    assert chats.rows() == [([*ids, eod], [*mask, 0]) for ids, mask in rows]


def test_weights_and_kept_values(chats: Chats) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    every = [{**one, "weight": one["id"] / 8} for one in RECORDS[:9]]
    chats.encode(every, weight_key="weight", keep=["id"])
    records = every[1:]  # of weight 0 is nothing to be learned
    chats.right(records)
    assert [(one["line"], one["kind"]) for one in chats.rejects()] == [(1, "nothing is trained")]
    data = tokpack.MMapIndexedDataset(chats.output)
    for i, one in enumerate(records):
        weights = data.track("weights")[i]
        assert weights.dtype == np.float16
        assert {*weights.tolist()} == {one["weight"]}
    table = parquet.read_table(f"{chats.output}.docs.parquet")
    assert table.column("id").to_pylist() == [one["id"] for one in records]


@pytest.mark.parametrize("workers", [1, 2])
def test_tokens_are_counted_by_role_and_input(
    chats: Chats, workers: int, small_parts: None
) -> None:
    made = conversations(120, words=200) if workers > 1 else RECORDS
    records = [one for one in made if "<|im_start|>" not in str(one)]  # it tells turns apart below
    half = len(records) // 2
    inputs = [
        write_records(chats.folder / f"{name}.jsonl", part)
        for name, part in (("a", records[:half]), ("b", records[half:]))
    ]
    manifest = chats.encode(tuple(map(str, inputs)), workers=workers, max_length=300)
    begin = tokpack.load_tokenizer(chats.tokenizer).token_to_id("<|im_start|>")
    roles, of_inputs = dict[str, Counter[str]](), [0, 0]
    talks = [one["messages"] for one in records]
    for number, (talk, (ids, mask)) in enumerate(zip(talks, chats.twin.rows(talks), strict=True)):
        if len(ids) > 300 or not any(mask):
            continue
        of_inputs[number >= half] += sum(mask)
        turns = (np.cumsum(np.array(ids) == begin) - 1).tolist()
        for turn, is_trained in zip(turns, mask, strict=True):
            of_role = roles.setdefault(talk[turn]["role"], Counter(tokens=0, trained=0))
            of_role.update(tokens=1, trained=is_trained)
    assert {role: dict(counts) for role, counts in manifest.roles.items()} == roles
    assert [entry["trained"] for entry in manifest.inputs] == of_inputs
    assert manifest.trained == sum(of_inputs)


def test_thinking_that_the_template_leaves_out_is_counted(chats: Chats) -> None:
    thought = {"role": "assistant", "content": "of", "reasoning_content": "in was"}
    talk = [{"role": "user", "content": "is"}, thought]
    manifest = chats.encode([{"messages": talk}, *RECORDS[:2]])
    assert manifest.thoughts_unwritten == 1


def test_messages_that_the_template_leaves_out_are_counted(chats: Chats) -> None:
    """Not those whose text it takes elsewhere, nor empty ones."""
    template = chats.folder / "some.jinja"
    template.write_text(
        "{% if messages[0].role == 'system' %}<|im_start|>{{ messages[0].content }}{% endif %}"
        "{% for m in messages %}{% if m.role in ('user', 'assistant') %}<|im_start|>{{ m.role }} "
        "{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
    )
    said = {"system": "the of", "developer": "was in", "user": "is", "assistant": "and"}
    talk = [{"role": role, "content": text} for role, text in said.items()]
    empty = {"role": "tool", "content": " "}
    records = [{"messages": talk}, {"messages": [*talk[:3], empty, talk[3]]}]
    manifest = chats.encode(records, chat_template=str(template))
    assert manifest.messages_unwritten == 2


def test_pairs_lie_side_by_side(chats: Chats) -> None:
    question = {"role": "user", "content": "the of"}
    answers = [{"role": "assistant", "content": text} for text in ("and", "was " * 30, "in")]
    records = [
        {"chosen": [question, answers[0]], "rejected": [question, answers[2]], "score": 1},
        {"chosen": [question, answers[2]], "rejected": [question, answers[1]], "score": 2},
    ]
    both = [[one["chosen"], one["rejected"]] for one in records]
    chats.encode(records)
    assert chats.rows() == chats.twin.rows([one for pair in both for one in pair])
    manifest = chats.encode(records, overwrite=True, max_length=40, pairs=["chosen", "rejected"])
    assert chats.rows() == chats.twin.rows(both[0])
    assert (manifest.records, manifest.documents, manifest.adds_up) == (2, 2, True)
    kinds = [(one["line"], one["kind"]) for one in chats.rejects()]
    assert kinds == [(2, "the other of its pair is left out"), (2, "too long")]


def test_each_answer_of_a_pair_keeps_its_own_numbers(chats: Chats) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    record = {"prompt": "of", "chosen": "is", "rejected": "was", "id": "a"}
    scores = {"chosen_score": 8, "rejected_score": 2.5}
    scores |= {"ref_chosen_logps": None, "ref_rejected_logps": -20.25}
    keep = ["id", "score={}_score", "reference_logprob=ref_{}_logps"]
    chats.encode([{**record, **scores}], keep=keep)
    table = parquet.read_table(f"{chats.output}.docs.parquet").select(
        ["id", "score", "reference_logprob"]
    )
    assert table.to_pylist() == [
        {"id": "a", "score": 8.0, "reference_logprob": None},
        {"id": "a", "score": 2.5, "reference_logprob": -20.25},
    ]
    wrong = [{**record, **scores, "chosen_score": "high"}]
    says = "no number: chosen_score is 'high'"
    chats.refused(wrong, says, RecordError, keep=keep, overwrite=True)


@pytest.mark.parametrize(
    ("template", "options"),
    [("", {"max_length": 12, "truncate": "right"}), ("trim", {}), ("split('#')[0]", {}), ("", {})],
)
def test_pairs_of_the_same_tokens_are_left_out(
    chats: Chats, template: str, options: dict[str, Any]
) -> None:
    """Because of the cut, because of what the template leaves out, or as they are."""
    said = {"split('#')[0]": ("and#of", "and"), "trim": ("and ", "and")}
    equal = ("and of the is", "and of the was") if options else ("and", "and")
    chosen, rejected = said.get(template, equal)
    records = [
        {"prompt": "the of", "chosen": chosen, "rejected": rejected},
        {"prompt": "the of", "chosen": "in", "rejected": "was"},
    ]
    file = chats.folder / "mine.jinja"
    content = f"message['content'].{template}" if template.startswith("split") else template
    content = f"(message['content'] | {template})" if template == "trim" else content
    file.write_text(TEMPLATE.replace("message['content']", content or "message['content']"))
    if options:
        empty = [{"role": "user", "content": "the of"}, {"role": "assistant", "content": ""}]
        (ids, _), *_ = chats.twin.rows([empty])
        options = {**options, "max_length": len(ids) + 1}  # three tokens of the answer
    manifest = chats.encode(records, chat_template=str(file), **options)
    talks = [
        [{"role": "user", "content": "the of"}, {"role": "assistant", "content": text}]
        for text in ("in", "was")
    ]
    assert chats.rows() == chats.twin.rows(talks)
    assert dict(manifest.reasons) == {"both answers of the pair are the same": 2}
    assert (manifest.mapped_out, manifest.documents, manifest.adds_up) == (2, 2, True)
    assert [one["line"] for one in chats.rejects()] == [1, 1]


@pytest.mark.parametrize("key", ["label", "kto_tag"])
def test_an_answer_that_is_labelled_as_bad_is_learned_by_nobody_who_does_not_know(
    chats: Chats, key: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    records = [
        {"prompt": "the of", "completion": text, key: is_good}
        for text, is_good in (("and", True), ("in", False), ("was", True))
    ]
    says = rf"in\.jsonl:2: labelled as no good answer: its {key} is False.* where='{key}::bool'"
    chats.refused(records, says, RecordError)
    manifest = chats.encode(records, on_error="skip", overwrite=True)
    assert (manifest.documents, manifest.rejected) == (2, 1)
    chats.encode(records, keep=[key], overwrite=True)
    table = parquet.read_table(f"{chats.output}.docs.parquet")
    assert table.column(key).to_pylist() == [True, False, True]
    manifest = chats.encode(records, weight_key=key, overwrite=True)
    assert dict(manifest.reasons) == {"nothing is trained": 1}
    pytest.importorskip("duckdb")
    assert chats.encode(records, where=key, overwrite=True).documents == 2
    texts = [{**one, key: str(one[key])} for one in records]  # as rows of CSV have them
    chats.refused(texts, f"its {key} is False", RecordError, overwrite=True)
    assert chats.encode(texts, where=f"{key}::bool", overwrite=True).documents == 2
    numbers = [{**one, key: int(one[key])} for one in records]
    chats.refused(numbers, f"its {key} is 0", RecordError, overwrite=True)
    texts = [{**one, key: str(one[key])} for one in numbers]
    chats.refused(texts, f"its {key} is 0", RecordError, overwrite=True)
    talks = [{"messages": RECORDS[0]["messages"], key: 0}]  # of a class, say
    assert chats.encode(talks, overwrite=True).documents == 1


def test_pairs_are_found_under_the_keys_of_other_programs(chats: Chats) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    record = {"messages": [{"role": "user", "content": "the of"}], "id": 1}
    record["messages"].append({"role": "assistant", "content": "and"})
    record |= {"rejected_response": "in", "messages_score": 2, "rejected_response_score": 1}
    manifest = chats.encode([record], keep=["id", "score={}_score"])
    assert manifest.options["pairs"] == ["messages", "rejected_response"]
    talks = [[record["messages"][0], {"role": "assistant", "content": t}] for t in ("and", "in")]
    assert chats.rows() == chats.twin.rows(talks)
    table = parquet.read_table(f"{chats.output}.docs.parquet")
    assert table.column("score").to_pylist() == [2.0, 1.0]
    other = {"question": "the of", "chosen": "and", "rejected": "in"}
    chats.refused([record, other], "each kind into a dataset of its own", overwrite=True)
    chats.refused([{**other, "context": "is"}], "prompt_key=", RecordError, overwrite=True)
    chats.encode([{**other, "context": "is"}], prompt_key="question", overwrite=True)
    assert chats.rows() == chats.twin.rows(talks)


def test_what_is_to_be_known_of_conversations_is_counted(chats: Chats) -> None:
    """Ends that are not trained, first tokens that are one with the header, a second BOS."""
    file = chats.folder / "mine.jinja"
    file.write_text(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    given = {"chat_template": str(file), "template_var": {"bos_token": EOD}}
    talk = [
        {"role": role, "content": text}
        for role, text in (("user", "is"), ("assistant", "the of"), ("user", "a"))
    ]
    parts = [{"type": "text", "text": "7 the", "train": False}, {"type": "text", "text": " of"}]
    records = [
        {"messages": [*talk, {"role": "assistant", "content": "1"}]},
        {"messages": [*talk[:1], {"role": "assistant", "content": parts}]},
        {"prompt": "is", "completion": "was"},
    ]
    manifest = chats.encode(records, **given)
    assert (manifest.answers, manifest.stops_untrained) == (4, 4)
    tokenizer = tokpack.load_tokenizer(chats.tokenizer)
    trained = [[i for i, m in zip(*row, strict=True) if m] for row in chats.rows()]
    assert [tokenizer.decode(ids[:1]) for ids in trained] == [" the", " of", " was"]
    assert manifest.headers_merged == 2
    assert manifest.frames_doubled == 0
    twice = chats.encode(records, prepend_bos=True, bos_token=EOD, overwrite=True, **given)
    assert twice.frames_doubled == 3
    ended = chats.encode(records, append_eod=True, append_eot=True, overwrite=True, **given)
    assert (ended.stops_untrained, ended.frames_doubled) == (1, 0)
    file.write_text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    given["template_var"] = {"eos_token": EOD}
    assert chats.encode(records, append_eod=True, overwrite=True, **given).frames_doubled == 3


def test_a_text_beside_a_call_that_is_left_out_is_counted(chats: Chats) -> None:
    file = chats.folder / "mine.jinja"
    calls = "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% else %}"
    body = "{{ '<|im_start|>' + message['role'] + '\\n' }}" + calls + "{{ message['content'] }}"
    file.write_text(
        "{% for message in messages %}" + body + "{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": "of"}}}
    said = {"role": "assistant", "content": "of", "tool_calls": [call]}
    records = [{"messages": [{"role": "user", "content": "is"}, said]}, *RECORDS[:2]]
    assert chats.encode(records, chat_template=str(file)).contents_unwritten == 1


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [{"role": "user", "content": "a", 7: "b"}]},
        {"messages": [{"role": "user", "content": "a", "b": {None: 1}}]},
        {"messages": [{"role": "user", "content": object()}]},
        {"messages": [{"role": "user", "content": "a", ("b",): 1}]},
        {"messages": [{"role": "user", "content": "a"}], "id": Unreadable()},
        {"messages": [{"role": "assistant", "content": "a", "weight": 10**400}]},
    ],
)
def test_any_record_is_encoded_or_is_a_bad_one(chats: Chats, wrong: dict[str, Any]) -> None:
    manifest = chats.encode(iter([RECORDS[0], wrong, RECORDS[1]]), on_error="skip")
    assert (manifest.documents, manifest.rejected) == (2, 1)
    says = "document number 2: (malformed message|a value in it has no JSON text)"
    chats.refused(iter([RECORDS[0], wrong]), says, RecordError, overwrite=True)


def test_what_cannot_be_kept_until_its_turn_is_refused(chats: Chats) -> None:
    chats.refused(iter([{"messages": (one for one in ())}]), "a value of the type generator")


def test_where_chooses_records(chats: Chats) -> None:
    pytest.importorskip("duckdb")
    manifest = chats.encode(RECORDS, where="id % 3 = 0")
    chats.right(RECORDS[::3])
    assert manifest.left_out == len(RECORDS) - len(RECORDS[::3])
    chats.refused(RECORDS, "of 60 records: 60 left out by where", where="id < 0", overwrite=True)


# What is left out is counted.


@pytest.mark.parametrize("truncate", ["drop", "left", "right"])
def test_conversations_that_are_too_long(chats: Chats, truncate: str) -> None:
    most = 60
    rows = chats.twin.rows([one["messages"] for one in RECORDS])
    expected, lost, cut = [], dict[str, int](), 0
    for ids, mask in rows:
        is_long = len(ids) > most
        if is_long and truncate != "drop":
            part = slice(-most, None) if truncate == "left" else slice(most)
            ids, mask = ids[part], mask[part]  # noqa: PLW2901
        if is_long and truncate == "drop":
            lost["too long"] = lost.get("too long", 0) + 1
        elif not any(mask):
            lost["what is trained is cut off"] = lost.get("what is trained is cut off", 0) + 1
        else:
            expected.append((ids, mask))
            cut += is_long
    manifest = chats.encode(RECORDS, max_length=most, truncate=truncate)
    assert chats.rows() == expected
    assert expected
    assert cut or lost
    assert dict(manifest.reasons) == lost
    assert (manifest.truncated, manifest.mapped_out) == (cut, sum(lost.values()))
    assert manifest.adds_up
    left_out = chats.rejects() if lost else []
    assert [one["left_out"] for one in left_out] == [True] * sum(lost.values())


@pytest.mark.parametrize(
    ("truncate", "frame"), [("right", {"append_eod": True}), ("left", {"prepend_bos": True})]
)
def test_tokens_around_a_conversation_stay(chats: Chats, truncate: str, frame: Any) -> None:
    most, tokenizer = 40, tokpack.load_tokenizer(chats.tokenizer)
    around = tokenizer.token_to_id(EOD)
    bos = {"bos_token": EOD} if truncate == "left" else {}
    chats.encode(RECORDS, max_length=most, truncate=truncate, **frame, **bos)
    expected = []
    for ids, mask in chats.twin.rows([one["messages"] for one in RECORDS]):
        is_long = len(ids) >= most
        if truncate == "right":
            row = [*ids[: most - 1], around], [*mask[: most - 1], 0]
        else:
            part = slice(-(most - 1) if is_long else 0, None)
            row = [around, *ids[part]], [0, *mask[part]]
        expected += [row] if any(row[1]) else []
    assert chats.rows() == expected


def test_records_that_are_no_conversations(chats: Chats) -> None:
    image = [{"type": "image", "image": "x"}]
    bad: list[dict[str, Any]] = [
        {"text": "a"},
        {"messages": []},
        {"messages": [{"role": "user", "content": image}]},
        {"messages": [{"role": "martian", "content": "a"}]},
        {
            "messages": [
                {"role": "user", "content": "\ud800"},
                {"role": "assistant", "content": "a"},
            ]
        },
    ]
    alone = [{"messages": [{"role": "user", "content": "nobody answers"}]}]
    records = [*RECORDS[:5], *bad, *alone, *RECORDS[5:9]]
    source = write_records(chats.folder / "in.jsonl", records)
    with source.open("ab") as file:
        file.write(b"\n{broken\n\n")
    chats.refused(source, r"in\.jsonl:6: no conversation: its keys are text", RecordError)
    manifest = chats.encode(source, on_error="skip", overwrite=True)
    chats.right(RECORDS[:9])
    assert (manifest.records, manifest.rejected, manifest.mapped_out) == (16, 6, 1)
    assert sum(manifest.reasons.values()) == 7
    assert manifest.reasons["nothing is trained"] == 1
    assert manifest.reasons["malformed record"] == 1
    assert [one["line"] for one in chats.rejects()] == [6, 7, 8, 9, 10, 11, 17]
    assert "image" in chats.rejects()[2]["reason"]
    says = "6 bad records, more than the 5 allowed"
    chats.refused(source, says, overwrite=True, on_error="skip", max_rejects=5)


def test_nothing_is_left(chats: Chats) -> None:
    says = r"no conversation is left of 60 records: too long \(60\)"
    chats.refused(RECORDS, says, max_length=3)
    blank = chats.folder / "blank.jsonl"
    blank.write_text("\n\n")
    chats.refused(blank, "no records, so there is no conversation")
    chats.refused([{"text": "a"}], "none of the first 1 record.* their keys are text.*messages_key")


def test_messages_under_another_key(chats: Chats) -> None:
    records = [{"id": 1, "talk": one["messages"]} for one in RECORDS]
    chats.refused(records, "keys are id, talk")
    chats.encode(records, messages_key="talk")
    chats.right(RECORDS)


def test_text_is_asked_for_where_there_are_conversations(chats: Chats) -> None:
    source = write_records(chats.folder / "in.jsonl", RECORDS)
    with pytest.raises(RecordError, match=r"in\.jsonl:1: .*chat=True"):
        tokpack.encode(source, chats.output, tokenizer=chats.tokenizer, workers=1)
