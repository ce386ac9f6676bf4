"""Values of tables as Python has them: what ``datasets`` gives, without what Arrow adds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.encoding_tools import dataset

import tokpack
from tokpack.errors import InputError
from tokpack.sources.rows import WholeRecords
from tokpack.sources.values import python_values

if TYPE_CHECKING:
    from pathlib import Path

pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")
pq = pytest.importorskip("pyarrow.parquet")
hf = pytest.importorskip("datasets", reason="needs the hf extra")

TEMPLATE = """{% if tools %}{{ tools | tojson }}{% endif %}\
{% for message in messages %}{{ '<' + message.role + '>' }}{{ message.content or '' }}\
{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def tool(name: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "tool_calls": [
                    {"type": "function", "function": {"name": name, "arguments": arguments}}
                ],
            },
            {"role": "tool", "content": "ok"},
            {"role": "assistant", "content": "Done."},
        ]
    }


RECORDS = [
    {**call("weather", place="Bern"), "tools": [tool("weather", place="string")], "id": 0},
    {**call("add", a=1, b=2), "tools": [tool("add", a="integer", b="integer")], "id": 1},
]


def without_nones(value: Any) -> Any:
    """As TRL's ``remove_none_values``."""
    if isinstance(value, list):
        return [without_nones(one) for one in value]
    if isinstance(value, dict):
        return {key: without_nones(one) for key, one in value.items() if one is not None}
    return value


def as_json_features() -> Any:
    calls = {"type": hf.Value("string"), "function": {"name": hf.Value("string")}}
    calls["function"]["arguments"] = hf.Json()
    message = {"role": hf.Value("string"), "content": hf.Value("string")}
    features = {
        "messages": hf.List({**message, "tool_calls": hf.List(calls)}),
        "tools": hf.List(hf.Json()),
        "id": hf.Value("int64"),
    }
    return hf.Features(features)


def as_maps() -> Any:
    """Arguments as Spark and DuckDB write them."""
    arguments = pa.map_(pa.string(), pa.string())
    function = pa.struct([("name", pa.string()), ("arguments", arguments)])
    calls = pa.list_(pa.struct([("type", pa.string()), ("function", function)]))
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", calls)])
    rows = json.loads(
        json.dumps([{key: one[key] for key in ("messages", "id")} for one in RECORDS])
    )
    for row in rows:
        function = row["messages"][1]["tool_calls"][0]["function"]
        function["arguments"] = [(key, str(one)) for key, one in function["arguments"].items()]
    schema = pa.schema([("messages", pa.large_list(message)), ("id", pa.int64())])
    return pa.Table.from_pylist(rows, schema)


@pytest.fixture
def template(tmp_path: Path) -> str:
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return str(path)


def texts_of(made: Any, template: str, bpe: Path, output: Path) -> list[str]:
    """What is rendered: the tokenizer has a token for each byte."""
    options: dict[str, Any] = {"chat": True, "chat_template": template, "tokenizer": bpe}
    tokpack.encode(made, output, workers=1, overwrite=True, **options)
    tokenizer = tokpack.load_tokenizer(bpe)
    rows = tokpack.MMapIndexedDataset(output)
    return [tokenizer.decode(rows[i].tolist()) for i in range(len(rows))]


def kinds_of_struct() -> dict[str, Any]:
    table = pa.Table.from_pylist(RECORDS)
    by_datasets = hf.Dataset.from_list(RECORDS)
    json_table = hf.Dataset.from_list(RECORDS, features=as_json_features())
    return {
        "structs": table,
        "a dataset": by_datasets,
        "Json": json_table,
        "an iterable dataset of Json": json_table.to_iterable_dataset(),
        "batches": table.to_reader(),
        "batches of Json": json_table.data.table.to_reader(),
    }


@pytest.mark.parametrize("kind", kinds_of_struct())
def test_tables_of_this_process_say_what_json_lines_say(
    kind: str, template: str, tmp_path: Path, bpe: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    expected = texts_of(str(path), template, bpe, tmp_path / "o")
    assert '"arguments": {"place": "Bern"}' in expected[0]
    assert texts_of(kinds_of_struct()[kind], template, bpe, tmp_path / "o") == expected


@pytest.mark.parametrize("kind", ["structs", "Json"])
@pytest.mark.parametrize("file", ["a.parquet", "a.arrow", "saved"])
def test_files_say_what_json_lines_say(
    kind: str, file: str, template: str, tmp_path: Path, bpe: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    expected = texts_of(str(path), template, bpe, tmp_path / "o")
    data = hf.Dataset.from_list(RECORDS, features=as_json_features() if kind == "Json" else None)
    target = str(tmp_path / file)
    if file == "saved":
        data.save_to_disk(target)
    elif file == "a.parquet":
        data.to_parquet(target)
    else:
        with pa.ipc.new_file(target, data.data.table.schema) as writer:
            writer.write_table(data.data.table)
    assert texts_of(target, template, bpe, tmp_path / "o") == expected


def test_messages_that_are_all_of_the_json_type(template: str, tmp_path: Path, bpe: Path) -> None:
    """As ``from_list(..., on_mixed_types="use_json")`` makes them."""
    features = hf.Features({"messages": hf.List(hf.Json()), "tools": hf.Json()})
    rows = [{key: one[key] for key in features} for one in RECORDS]
    data = hf.Dataset.from_list(rows, features=features)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    expected = texts_of(str(path), template, bpe, tmp_path / "o")
    data.to_parquet(tmp_path / "a.parquet")
    for made in (data, str(tmp_path / "a.parquet")):
        assert texts_of(made, template, bpe, tmp_path / "o") == expected


def test_maps_are_mappings(template: str, tmp_path: Path, bpe: Path) -> None:
    pq.write_table(as_maps(), tmp_path / "a.parquet")
    for made in (as_maps(), str(tmp_path / "a.parquet")):
        first, second = texts_of(made, template, bpe, tmp_path / "o")
        assert '{"name": "weather", "arguments": {"place": "Bern"}}' in first
        assert '"arguments": {"a": "1", "b": "2"}' in second


def test_a_null_that_is_written_stays(template: str, tmp_path: Path, bpe: Path) -> None:
    record = {**call("f", a=None, b={"c": None}), "id": 1}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record) + "\n")
    wanted = '"arguments": {"a": null, "b": {"c": null}}'
    (text,) = texts_of(str(path), template, bpe, tmp_path / "o")
    assert wanted in text
    features = as_json_features()
    data = hf.Dataset.from_list([{**record, "tools": []}], features=features)
    (text,) = texts_of(data, template, bpe, tmp_path / "o")
    assert wanted in text
    (text,) = texts_of(pa.Table.from_pylist([record]), template, bpe, tmp_path / "o")
    assert '"arguments": {"b": {}}' in text


def test_values_that_are_kept_are_those_of_the_column(
    template: str, tmp_path: Path, bpe: Path
) -> None:
    """With their nulls, as without conversations; JSON is decoded, and maps are mappings."""
    meta = [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    rows = [{**one, "meta": m, "text": "t"} for one, m in zip(RECORDS, meta, strict=True)]
    table = pa.Table.from_pylist(rows)
    table = table.append_column("json", pa.array(['{"z": [1]}', "5"], pa.json_()))
    table = table.append_column("map", pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())))
    keep = ["meta", "meta.b", "json", "map"]
    for chat in (True, False):
        options = {"chat": True, "chat_template": template} if chat else {}
        tokpack.encode(table, tmp_path / "o", tokenizer=bpe, keep=keep, overwrite=True, **options)
        kept = pq.read_table(tmp_path / "o.docs.parquet").to_pylist()
        assert [json.loads(one["meta"]) for one in kept] == meta
        assert [one["meta.b"] for one in kept] == [None, "x"]
        assert [json.loads(one["json"]) for one in kept] == [{"z": [1]}, 5]
        assert [json.loads(one["map"]) for one in kept] == [{"k": 1}, {}]


def test_json_that_is_none_is_named(template: str, tmp_path: Path, bpe: Path) -> None:
    storage = pa.array(['{"a": 1', None])
    column = pa.ExtensionArray.from_storage(pa.json_(), storage)
    with pytest.raises(InputError, match=r"arrow\.json"):
        python_values(column)
    table = pa.table({"messages": [one["messages"] for one in RECORDS], "tools": column})
    with pytest.raises(InputError, match=r"arrow\.json"):
        tokpack.encode(table, tmp_path / "o", tokenizer=bpe, chat=True, chat_template=template)


leaves = st.none() | st.integers(-5, 5) | st.text(max_size=3)
json_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
row = st.fixed_dictionaries(
    {
        "number": st.none() | st.integers(-5, 5),
        "struct": st.none()
        | st.fixed_dictionaries(
            {
                "a": st.none() | st.text(max_size=3),
                "json": st.none() | json_values.filter(lambda one: not isinstance(one, str)),
                "list": st.none()
                | st.lists(
                    st.none() | st.fixed_dictionaries({"b": st.none() | st.integers(-5, 5)}),
                    max_size=3,
                ),
            }
        ),
        "jsons": st.none()
        | st.lists(
            st.none() | json_values.filter(lambda one: not isinstance(one, str)), max_size=3
        ),
    }
)
FEATURES = hf.Features(
    {
        "number": hf.Value("int64"),
        "struct": {
            "a": hf.Value("string"),
            "json": hf.Json(),
            "list": hf.List({"b": hf.Value("int64")}),
        },
        "jsons": hf.List(hf.Json()),
    }
)


def expected_of(value: Any, given_: Any) -> Any:
    """A row of ``datasets`` without the nulls of structs, but with those that its JSON has."""
    if value is None:
        return None
    return {
        name: given_["json"] if name == "json" else without_nones(one)
        for name, one in value.items()
        if one is not None
    }


@given(st.lists(row, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_nesting_is_what_datasets_gives(rows: list[Any]) -> None:
    data = hf.Dataset.from_list(rows, features=FEATURES)
    table = data.data.table.combine_chunks()
    theirs = data[:]
    for name in FEATURES:
        assert python_values(table[name]) == theirs[name]
    records = WholeRecords({}, None, frozenset(["number"])).of_rows(table)
    for record, given_, number in zip(records, rows, range(len(rows)), strict=True):
        assert record["number"] == given_["number"]
        assert record["jsons"] == theirs["jsons"][number]
        assert record["struct"] == expected_of(theirs["struct"][number], given_["struct"])


def test_a_run_of_conversations_from_tables_is_known_by_it(
    template: str, tmp_path: Path, bpe: Path
) -> None:
    """What an earlier version has made of structs is not taken for what this one makes of them."""
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "a.parquet")
    manifest = tokpack.encode(
        str(tmp_path / "a.parquet"),
        tmp_path / "o",
        tokenizer=bpe,
        chat=True,
        chat_template=template,
    )
    assert manifest.options["chat"]["struct_nulls"] == "left out"


def test_keys_inside_of_structs(tmp_path: Path, bpe: Path) -> None:
    rows = [
        {"meta": {"text": f"text {i}", "source": f"s{i}", "deep": {"text": f"deep {i}"}}}
        for i in range(500)
    ]
    rows[7] = {"meta": None}
    rows[8]["meta"]["text"] = None
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in rows))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    for keys in ("meta.text", ["meta.text", "meta.deep.text"]):
        options: dict[str, Any] = {"keys": keys, "tokenizer": bpe, "on_error": "skip"}
        options["overwrite"] = True
        tokpack.encode(str(lines), tmp_path / "lines", **options)
        names = [""] if isinstance(keys, str) else [f"_{key}" for key in keys]
        for made in (str(tmp_path / "a.parquet"), table, table.to_reader(), table.to_pandas()):
            tokpack.encode(made, tmp_path / "o", keep=["meta.source"], **options)
            for name in names:
                assert dataset(tmp_path / f"o{name}") == dataset(tmp_path / f"lines{name}")
    assert pq.read_table(tmp_path / "o_meta.text.docs.parquet")["meta.source"][3].as_py() == "s3"
    for key, said in (
        ("meta.nope", "'meta.nope'; .* meta$"),
        ("meta.deep", "'meta.deep' .*struct<"),
        ("meta", "'meta' .*struct<"),
    ):
        for made in (str(tmp_path / "a.parquet"), table, table.to_pandas()):
            with pytest.raises(InputError, match=said):
                tokpack.encode(made, tmp_path / "x", keys=key, tokenizer=bpe)
