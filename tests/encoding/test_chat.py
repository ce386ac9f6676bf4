"""Conversations become the tokens and masks that a plain twin finds one by one."""

from __future__ import annotations

import functools
import json
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import forked
from support.chatml_twin import (
    TEMPLATE,
    ChatTwin,
    chat_tokenizer,
    conversations,
    rendered,
    write_records,
)
from support.encoding_tools import DRIVER, EOD, dataset
from support.stopped_runs import STOP_AT_END, STOP_AT_PART, STOP_AT_RENAME

import tokpack
import tokpack.chat
from tokpack.chat.renderer import Renderer
from tokpack.encoding import plan
from tokpack.errors import InputError, RecordError, ResumeError, TokenizerError, UsageError
from tokpack.files import blocks
from tokpack.operations import verify

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


pytest.importorskip("jinja2")
RECORDS = conversations(60)


@pytest.fixture(scope="session")
def chatty(bpe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer that has a template."""
    return chat_tokenizer(tmp_path_factory.mktemp("chat") / "chatty", bpe)


@pytest.fixture(scope="session")
def twin(chatty: Path) -> ChatTwin:
    return ChatTwin(chatty)


class Chats:
    """A folder in which conversations are encoded and read back."""

    def __init__(self, folder: Path, tokenizer: Path, twin: ChatTwin) -> None:
        self.folder, self.tokenizer, self.twin = folder, tokenizer, twin
        self.output = folder / "out"

    def encode(self, inputs: Any, **options: Any) -> tokpack.Manifest:
        settings = {"tokenizer": str(self.tokenizer), "chat": True, "workers": 1, **options}
        if isinstance(inputs, list):
            inputs = write_records(self.folder / "in.jsonl", inputs)
        return tokpack.encode(inputs, self.output, **settings)

    def refused(self, inputs: Any, says: str, error: Any = InputError, **options: Any) -> None:
        with pytest.raises(error, match=says):
            self.encode(inputs, **options)

    def rows(self) -> list[tuple[list[int], list[int]]]:
        """Ids and mask of each document that is there."""
        data = tokpack.MMapIndexedDataset(self.output)
        return [(data[i].tolist(), data.mask[i].tolist()) for i in range(len(data))]

    def right(self, records: Sequence[dict[str, Any]]) -> None:
        """Check that the dataset has these conversations; verify must find no fault."""
        ids, mask, lengths = self.twin.arrays([one["messages"] for one in records])
        data = tokpack.MMapIndexedDataset(self.output)
        assert data.sizes.tolist() == lengths
        assert np.array_equal(np.concatenate([data[i] for i in range(len(data))]), ids)
        assert np.fromfile(f"{self.output}.mask", np.uint8).tolist() == mask.tolist()
        manifest = tokpack.Manifest.load(self.output)
        assert manifest.adds_up
        assert manifest.trained == mask.sum()
        verify(str(self.output))

    def rejects(self) -> list[dict[str, Any]]:
        text = (self.folder / "out.rejects.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def chats(tmp_path: Path, chatty: Path, twin: ChatTwin) -> Chats:
    return Chats(tmp_path, chatty, twin)


# What is encoded.


@pytest.mark.parametrize("workers", [1, 3])
def test_json_lines(chats: Chats, workers: int, small_parts: None) -> None:
    records = conversations(500, words=400) if workers > 1 else RECORDS
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
    settings = json.dumps({**options, "tokenizer": str(chats.tokenizer)})
    for script in (STOP_AT_PART.format(part=3), STOP_AT_END, STOP_AT_RENAME.format(done=1)):
        run = functools.partial(forked.run, capture_output=True, check=False, timeout=120)
        done = run(["-c", script + DRIVER, settings])
        assert done.returncode == -signal.SIGKILL, done.stderr
        with pytest.MonkeyPatch.context() as patch:
            small = functools.partial(plan.make_parts, smallest_bytes=48 << 10)
            patch.setattr(plan, "make_parts", small)
            patch.setattr(blocks, "BLOCK_BYTES", 4 << 10)
            chats.encode(source)
            chats.right(records)
        for path in chats.folder.glob("out*"):
            path.unlink()


def test_another_request_does_not_go_on(chats: Chats) -> None:
    chats.encode(RECORDS)
    before = dataset(chats.output)
    assert chats.encode(RECORDS).created == tokpack.Manifest.load(chats.output).created
    with pytest.raises(tokpack.OutputError, match="--loss = 'assistant', this run has 'last'"):
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
    assert len(trained(loss="all")) == len(TEMPLATE) - len(TEMPLATE) + sum(
        len(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n") for one in messages
    )


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


def test_where_chooses_records(chats: Chats) -> None:
    pytest.importorskip("duckdb")
    manifest = chats.encode(RECORDS, where="id % 3 = 0")
    chats.right(RECORDS[::3])
    assert manifest.left_out == len(RECORDS) - len(RECORDS[::3])


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
    chats.refused(source, r"in\.jsonl:6: no conversation: it has text", RecordError)
    manifest = chats.encode(source, on_error="skip", overwrite=True)
    chats.right(RECORDS[:9])
    assert (manifest.records, manifest.rejected, manifest.mapped_out) == (16, 6, 1)
    assert sum(manifest.reasons.values()) == 7
    assert manifest.reasons["nothing is trained"] == 1
    assert manifest.reasons["malformed record"] == 1
    assert [one["line"] for one in chats.rejects()] == [6, 7, 8, 9, 10, 11, 17]
    assert "image" in chats.rejects()[2]["reason"]
    says = "6 bad records, and 5 are allowed"
    chats.refused(source, says, overwrite=True, on_error="skip", max_rejects=5)


def test_nothing_is_left(chats: Chats) -> None:
    says = r"of 60 records no conversation is left: too long \(60\)"
    chats.refused(RECORDS, says, max_length=3)
    chats.refused([{"text": "a"}], "none of the first 1 record.* their keys are text.*messages_key")


def test_messages_under_another_key(chats: Chats) -> None:
    records = [{"id": 1, "talk": one["messages"]} for one in RECORDS]
    chats.refused(records, "keys are id, talk")
    chats.encode(records, messages_key="talk")
    chats.right(RECORDS)


def test_text_is_asked_for_where_there_are_conversations(chats: Chats) -> None:
    source = write_records(chats.folder / "in.jsonl", RECORDS)
    with pytest.raises(RecordError, match=r"its keys are .id., .messages.: .*chat=True"):
        tokpack.encode(source, chats.output, tokenizer=chats.tokenizer, workers=1)


# Templates.


def test_no_template(chats: Chats, bpe: Path) -> None:
    says = "no chat template .*chat_template='FILE'"
    chats.refused(RECORDS, says, UsageError, tokenizer=str(bpe))
    file = chats.folder / "mine.jinja"
    file.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}|{% endfor %}")
    chats.encode(RECORDS[:3], tokenizer=str(bpe), chat_template=str(file))
    (ids, mask), *_ = chats.rows()
    text = tokpack.load_tokenizer(bpe).decode(ids)
    assert text.startswith(f"{RECORDS[0]['messages'][0]['role']}: ")
    assert any(mask)
    file.write_text("{% for %}")
    chats.refused(RECORDS, "wrong in line 1", UsageError, chat_template=str(file), overwrite=True)


def test_a_template_that_is_changed_is_another_request(chats: Chats) -> None:
    file = chats.folder / "mine.jinja"
    file.write_text(TEMPLATE)
    chats.encode(RECORDS, chat_template=str(file))
    file.write_text(TEMPLATE + " ")
    with pytest.raises((tokpack.OutputError, ResumeError), match="sha256 of the chat template"):
        chats.encode(RECORDS, chat_template=str(file))


def test_variables_of_a_template(chats: Chats) -> None:
    file = chats.folder / "mine.jinja"
    file.write_text("{{ greeting }}" + TEMPLATE)
    chats.encode(RECORDS[:2], chat_template=str(file), template_var={"greeting": "the of"})
    text = tokpack.load_tokenizer(chats.tokenizer).decode(chats.rows()[0][0])
    assert text.startswith("the of<|im_start|>")


# Requests that make no sense.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chat": False, "max_length": 3}, "max_length needs chat=True"),
        ({"split_sentences": True}, "split_sentences is for documents"),
        ({"keys": "messages"}, "messages_key"),
        ({"special_tokens": "text"}, "encoded as their ids"),
        ({"truncate": "up"}, "it can be drop, left, right"),
        ({"truncate": "left"}, "truncate='left' says .* more than max_length tokens"),
        ({"max_length": 0}, "the least is 1"),
        ({"pairs": ["a", "a"]}, "two different keys"),
        ({"template_var": {"a": {1}}}, "template_var: .*not JSON"),
        ({"template_var": {"add_generation_prompt": True}}, "template_var='add_generation_prompt'"),
        ({"template_var": {"messages": []}}, "template_var='messages'"),
        ({"role_map": "a"}, "takes a mapping"),
        ({"loss": "martian"}, "role 'martian' is unknown"),
        ({"map": "os:getcwd"}, "map is for documents"),
        ({"tokenizers": ["a", "b"], "tokenizer": None}, "takes one tokenizer"),
    ],
)
def test_wrong_requests(chats: Chats, options: dict[str, Any], says: str) -> None:
    chats.refused(RECORDS[:1], says, UsageError, **options)


def test_a_tokenizer_without_special_tokens_in_text(chats: Chats) -> None:
    words = chats.folder / "words.json"
    words.write_text(json.dumps({"<unk>": 0, "<|endoftext|>": 1}))
    options = {"vocab_file": str(words), "tokenizer_type": "Whitespace", "tokenizer": None}
    file = chats.folder / "mine.jinja"
    file.write_text(TEMPLATE)
    says = "never encodes special tokens"
    chats.refused(RECORDS, says, TokenizerError, chat_template=str(file), **options)


# Checks on every run.


def test_what_is_trained_outside_of_an_answer_is_refused(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(self: Renderer, records: Any, real: Any = Renderer.render_all) -> Any:
        for made in real(self, records):
            yield [one._replace(trained=((0, 3), *one.trained)) for one in made]

    monkeypatch.setattr(Renderer, "render_all", shifted)
    says = r"in\.jsonl:1: trained outside of an answer: '<\|i' at character 0"
    chats.refused(RECORDS, says, RecordError)


def test_marks_are_held_to_the_library(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokpack import _core

    def wrong(*arrays: Any, real: Any = _core.mark_tokens) -> Any:
        mask = real(*arrays)
        if len(arrays[1]) > 1:
            return mask
        calls.append(1)
        return mask ^ (len(calls) == 1)

    calls: list[int] = []
    monkeypatch.setattr(_core, "mark_tokens", wrong)
    chats.refused(RECORDS, "fails its self-check: .* give different mask", TokenizerError)


# One record, to look at.


def test_render_gives_what_encode_writes(chats: Chats) -> None:
    chats.encode(RECORDS)
    for record, (ids, mask) in zip(RECORDS[:6], chats.rows()[:6], strict=True):
        (made,) = tokpack.chat.render(record, tokenizer=chats.tokenizer)
        assert (made.ids.tolist(), made.mask.tolist()) == (ids, mask)
        assert (made.text, list(made.trained)) == rendered(record["messages"])
        assert [turn.role for turn in made.turns] == [one["role"] for one in record["messages"]]


def test_render_says_what_is_wrong(chats: Chats) -> None:
    render = functools.partial(tokpack.chat.render, tokenizer=chats.tokenizer)
    with pytest.raises(tokpack.chat.ConversationError, match="no conversation: it has text"):
        render({"text": "a"})
    with pytest.raises(UsageError, match="no option 'los': did you mean loss"):
        render(RECORDS[0], los="last")
    with pytest.raises(UsageError, match=r"a record is a mapping .* not a list"):
        render([])  # type: ignore[arg-type]
    assert render(RECORDS[0], loss="all")[0].mask.all()
    assert "trained>" in repr(render(RECORDS[0])[0])


def test_a_dry_run_shows_what_is_trained(chats: Chats, capsys: pytest.CaptureFixture[str]) -> None:
    from tokpack.cli.main import main

    source = write_records(chats.folder / "in.jsonl", [*RECORDS[:2], {"text": "a"}])
    words = ["encode", str(source), "-o", str(chats.output), "--tokenizer", str(chats.tokenizer)]
    assert main([*words, "--chat", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "of the first 3 records: 2 conversations" in said
    assert "left out: no conversation (1)" in said
    assert "<|im_start|>assistant" in said
    assert "<|im_end|>]]" in said
    assert not list(chats.folder.glob("out*"))
    assert main([*words, "--dry-run"]) == 1
    assert "--dry-run shows what is trained of conversations: add --chat" in capsys.readouterr().err
