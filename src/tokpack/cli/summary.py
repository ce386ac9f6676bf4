"""What a command says about datasets that it made: for people on stderr, for machines on stdout."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from tokpack.cli.terminal import print_paths, put_json, say, say_folded
from tokpack.input_formats import FORMATS
from tokpack.quantities import bytes_text, count_text, counted, time_text
from tokpack.storage import is_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from tokpack.dataset import Manifest
    from tokpack.encoding import EncodeOptions
    from tokpack.progress import Progress

    Result = tuple[str, Manifest]


# How a run found its output: nothing there, an unfinished one, or the finished dataset.
Begun = Literal["new", "resumed", "complete"]
RATE_BYTES = 1_000_000  # with less text a rate says how long a start takes


def describe(prefix: str, manifest: Manifest) -> str:
    """One line about a dataset."""
    return (
        f"{prefix}: {counted(manifest.documents, 'document')}, "
        f"{counted(manifest.tokens, 'token')} as {manifest.dtype}, "
        f"{bytes_text(manifest.bin['bytes'])}"
    )


_ADDENDS = 8  # that are shown


def show(results: Sequence[Result], seconds: float) -> None:
    """Tell people what was copied, how long it took and, for larger datasets, how fast it was."""
    for prefix, manifest in results:
        say_folded(describe(prefix, manifest))
    size = sum(manifest.bin["bytes"] for _, manifest in results)
    rate = f", {bytes_text(size / seconds)}/s" if size > 10 * RATE_BYTES else ""
    say(f"  in {time_text(seconds)}{rate}")


def show_conserved(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Tell how many documents of the inputs are in the outputs, as their indices say."""
    from tokpack.dataset import MMapIndexedDataset

    if len(inputs) == len(outputs) == 1:
        return
    sides = []
    for prefixes in (inputs, outputs):
        counts = []
        for prefix in prefixes:
            with MMapIndexedDataset(prefix) as dataset:
                counts.append(dataset.documents)
        words = " + ".join(f"{count:,}" for count in counts)
        several = words if len(counts) <= _ADDENDS else f"those of {len(counts)} datasets"
        sides.append((sum(counts), several))
    (before, of_inputs), (after, of_outputs) = sides
    of = of_inputs if len(outputs) == 1 else of_outputs
    dropped = "none dropped" if before == after else f"{before - after:,} of {before:,} dropped"
    say_folded(f"  {after:,} documents = {of}; {dropped}")


def show_encoded(
    results: Sequence[Result], options: EncodeOptions, begun: Begun, seconds: float
) -> None:
    """Tell people what was encoded, where it is and what to type next."""
    for prefix, manifest in results:
        for line in _lines(prefix, manifest, options, _pace(manifest, begun, seconds)):
            say_folded(line, 13 if line[0] == " " else 2)
    prefix, manifest = results[0]
    if manifest.pieces:
        next_ = f"train on it, make one .bin for Megatron (tokpack merge {prefix} -o ONE)"
    elif is_url(prefix):
        next_ = "train on it where it is, copy its files to a disk for Megatron"
    elif manifest.options.get("chat"):
        next_ = (
            f"train on it, convert it for NeoX or TRL (tokpack convert {prefix} OUTPUT --to neox)"
        )
    else:
        next_ = f"for Megatron or NeoX: --data-path {prefix}"
    say_folded(f"next: {next_}, or look at it:")
    say(f"  tokpack inspect {shlex.quote(prefix)} --doc 0")


def print_made(results: Sequence[Result], arguments: argparse.Namespace) -> None:
    """Print what was made to stdout: the manifests as JSON, or the prefixes."""
    if arguments.json:
        datasets = [{"prefix": prefix, **json.loads(m.to_json())} for prefix, m in results]
        put_json({"datasets": datasets})
    else:
        print_paths(*(prefix for prefix, _ in results))


def _tokenizer(entry: Mapping[str, Any]) -> str:
    """The name of a tokenizer; for a folder also the files that were read."""
    name, paths = str(entry.get("name")), [file["path"] for file in entry.get("files") or ()]
    files = [os.path.basename(path) for path in paths]
    folders = [os.path.basename(os.path.dirname(path)) for path in paths]
    is_folder = os.path.basename(os.path.normpath(name)) in folders
    read = f"{', '.join(files)}; " if is_folder or len(files) > 2 else ""
    return f"{name} ({read}{entry.get('kind')})"


def _lines(prefix: str, manifest: Manifest, options: EncodeOptions, pace: str) -> list[str]:
    per_token = manifest.text_bytes / max(1, manifest.tokens)
    rejects = f"{options.output}.rejects.jsonl"
    counts = [
        ("read as", _formats(manifest)),
        (
            "tokenizer",
            f"{_tokenizer(manifest.tokenizer)}, stored as {manifest.dtype}",
        ),
        *([] if manifest.options.get("chat") else [("documents", _around(manifest))]),
        ("text", f"{bytes_text(manifest.text_bytes)}{pace}"),
    ]
    if manifest.sequences != manifest.documents:
        counts.append(("sequences", f"{manifest.sequences:,}"))
    if manifest.empty:
        what = "skipped" if options.empty == "skip" else "kept in the index"
        counts.append(("empty", f"{counted(manifest.empty, 'document')} without tokens, {what}"))
    counts += chosen(manifest) + conversations(manifest)
    if manifest.rejected or manifest.reasons:
        left = max(0, sum(manifest.reasons.values()) - manifest.rejected)
        kinds = ((manifest.rejected, "bad record"), (left, "conversation"))
        what = " and ".join(counted(number, kind) for number, kind in kinds if number)
        counts.append(("rejected", f"{what}{' left out,' if left else ''} in {rejects}"))
    counts_of = (source.get("special_tokens") for source in manifest.inputs)
    special = sum(count for count in counts_of if isinstance(count, int))
    if special and not manifest.options.get("chat"):
        became = "text" if manifest.options["special_tokens"] == "text" else "special tokens"
        written = f"{counted(special, 'special token')} written in documents"
        counts.append(("special", f"{written}, encoded as {became}"))
    several = f"{len(manifest.pieces)} " if manifest.pieces else ""
    sizes = {f"{several}.bin": manifest.bin["bytes"], f"{several}.idx": manifest.idx["bytes"]}
    sizes |= {f".{name}": digest["bytes"] for name, digest in manifest.tracks.items()}
    if manifest.table:
        sizes[".docs.parquet"] = manifest.table["bytes"]
    if manifest.dropped:
        sizes[".dropped.parquet"] = manifest.dropped["bytes"]
    sizes[".json"] = sum(map(len, manifest.chunks()))
    files = ", ".join(f"{end} ({bytes_text(size)})" for end, size in sizes.items())
    return [
        f"{prefix}: {counted(manifest.documents, 'document')}, "
        f"{counted(manifest.tokens, 'token')}, {per_token:.2f} bytes per token",
        *(f"  {name:<10} {text}" for name, text in [*counts, ("files", files)]),
    ]


def as_read(options: EncodeOptions, manifests: Sequence[Manifest]) -> list[tuple[str, str]]:
    """How a run reads its inputs, and what it makes of the first records."""
    one = manifests[0]
    files = one.tokenizer.get("files") or ()
    places = dict.fromkeys(os.path.dirname(file["path"]) for file in files)
    rows = [
        ("read as", _formats(one)),
        ("template", options.chat_template or one.tokenizer["name"])
        if options.chat
        else ("key", ", ".join(options.keys)),
        ("tokenizer", f"{_tokenizer(one.tokenizer)}, ids stored as {one.dtype}"),
        ("from", ", ".join(places) or "tokpack itself"),
        ("documents", _around(one)),
        *chosen(one),
    ]
    for key, manifest in zip(options.keys, manifests, strict=True):
        counts = [(manifest.documents, "document"), (manifest.tokens, "token")]
        said = [counted(count, what) for count, what in counts]
        left = ((manifest.empty, "without tokens"), (manifest.rejected, "rejected"))
        said += [f"{count:,} {what}" for count, what in left if count]
        said.append(f"{manifest.text_bytes / max(1, manifest.tokens):.2f} bytes per token")
        of = f" of {key}" if len(manifests) > 1 else ""
        rows.append((f"first{of}", f"{counted(manifest.records, 'record')}: {', '.join(said)}"))
    return rows


def expected(options: EncodeOptions, steps: Sequence[Progress], token_bytes: int) -> str:
    """The expected size of a dataset, and the time to make it, from the progress of a part."""
    last = steps[-1]
    times = last.total / last.done if last.done else 1.0
    if options.limit:
        times = options.limit / max(1, last.documents)
    is_whole = last.stage == "sync"
    times = 1.0 if is_whole else max(times, 1.0)
    tokens = int(last.tokens * times)
    size = tokens * token_bytes
    about = "in all" if is_whole else "expected: about"
    documents = count_text(int(last.documents * times))
    return (
        f"{about} {documents} document{'s' * (documents != '1')}, {count_text(tokens)} tokens, "
        f"{bytes_text(size)} of .bin, "
        f"in {time_text(last.seconds * times)} with {counted(last.workers, 'worker')}"
    )


def chosen(manifest: Manifest) -> list[tuple[str, str]]:
    """What ``where`` and ``map`` did, where they were asked for."""
    rows, options = [], manifest.options
    rows_in = manifest.records - manifest.left_out
    if options.get("where"):
        left = f"{manifest.left_out:,} of {counted(manifest.records, 'record')} left out"
        rows.append(("where", f"{left}: {options['where']}"))
    if options.get("map"):
        counts = f"{manifest.mapped_out:,} of {counted(rows_in, 'row')} left out"
        rows.append(("map", f"{counts}, {manifest.mapped_in:,} added: {options['map']}"))
    return rows


def conversations(manifest: Manifest) -> list[tuple[str, str]]:
    """What became of conversations, for a dataset that was made of them."""
    chat = manifest.options.get("chat")
    if not isinstance(chat, dict):
        return []
    form, template = chat.get("form") or "messages", str(chat.get("template_sha256"))[:8]
    rows = [("chat", f"{form}; loss on {chat.get('loss')}, template {template}")]
    if manifest.trained is not None:
        share = manifest.trained / max(1, manifest.tokens)
        rows.append(("trained", f"{counted(manifest.trained, 'token')}, {share:.1%}"))
    rows += chat_notes(vars(manifest))
    if manifest.truncated:
        where = f"at the {chat.get('truncate')}, to {chat.get('max_length')} tokens"
        rows.append(("cut", f"{counted(manifest.truncated, 'conversation')} {where}"))
    if manifest.reasons:
        most = sorted(manifest.reasons.items(), key=lambda one: -one[1])
        rows.append(("left out", ", ".join(f"{kind} ({count:,})" for kind, count in most)))
    return rows


def chat_notes(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Notes about conversations, from their counts."""

    def of(key: str, what: str) -> str:
        return counted(counts[key], what)

    answers = f"of {of('answers', 'answer')}"
    said = {
        "thoughts_unwritten": (
            "thinking",
            f"left out by the template in {of('thoughts_unwritten', 'trained answer')}",
        ),
        "messages_unwritten": (
            "messages",
            f"{of('messages_unwritten', 'message')} left out by the template",
        ),
        "contents_unwritten": (
            "texts",
            f"beside tool calls left out by the template in {of('contents_unwritten', 'message')}",
        ),
        "stops_untrained": (
            "ends",
            f"{counts['stops_untrained']:,} {answers} without a trained token that ends a turn "
            "(see --append-eot)",
        ),
        "headers_merged": (
            "merged",
            f"the first token of {counts['headers_merged']:,} {answers} is merged with the header",
        ),
        "frames_doubled": (
            "twice",
            f"{of('frames_doubled', 'document')} with a second BOS or EOD: the template writes it "
            "too",
        ),
    }
    return [row for key, row in said.items() if counts[key]]


def _formats(manifest: Manifest) -> str:
    """What the inputs were read as: JSON lines in zst; plain text, one document per line."""
    read = Counter((entry["format"], entry["compression"]) for entry in manifest.inputs)
    words = []
    for (format_, compression), count in read.items():
        inputs = f" ({counted(count, 'input')})" if len(manifest.inputs) > 1 else ""
        words.append(
            FORMATS[format_].words + (f" in {compression}" if compression else "") + inputs
        )
    return "; ".join(words)


def _around(manifest: Manifest) -> str:
    """What each document begins and ends with."""
    names = {id_: name for name, id_ in (manifest.tokenizer.get("special_ids") or {}).items()}
    before, after = manifest.frame or ([], [])

    def tokens(ids: list[int]) -> str:
        return " ".join(f"{names[i]} ({i})" if i in names else str(i) for i in ids)

    begin = f"begin with {tokens(before)}, " if before else ""
    if after and after[-1] == manifest.token_fact("eod_id"):
        return f"{begin}end with the EOD {tokens(after)}"
    return begin + (f"end with {tokens(after)}" if after else "end without an EOD")


def _pace(manifest: Manifest, begun: Begun, seconds: float) -> str:
    if begun == "complete":
        return "; the dataset was complete already"
    if begun == "resumed":
        return f"; resumed, the remainder took {time_text(seconds)}"
    if manifest.text_bytes < RATE_BYTES:
        return f" in {time_text(seconds)}"
    return f" in {time_text(seconds)}, {bytes_text(manifest.text_bytes / seconds)}/s"
