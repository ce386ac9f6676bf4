"""Runs whose output is on a store: made in a scratch folder on this machine, then uploaded.

The run in the scratch folder is as any on a disk, and goes on after a kill. Manifests are uploaded
last, each only where there is none: so a dataset is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.encoding.outputs import rejects_path
from tokpack.errors import FormatError, OutputError, UsageError
from tokpack.files.durable import UNFINISHED, cannot_write, remove_file, replace_json
from tokpack.files.foreign import read_object
from tokpack.indexed import Manifest, bin_path, idx_path, manifest_path, trace_path
from tokpack.indexed.manifest import checksum_of
from tokpack.stores import shown, stat
from tokpack.stores.upload import abort, check_writable, create, remove, send
from tokpack.stores.urls import same_object

if TYPE_CHECKING:
    from tokpack.encoding.options import EncodeOptions

_NOTE = "sent.json"


class Delivery:
    """The upload of what a run makes; a context, which removes the scratch folder if it is empty.

    ``options`` are those of the run in the scratch folder. With ``is_shard``, files on the store
    that have no manifest are from another machine that makes the same shard: they are replaced.
    UsageError for a web server, to which nothing can be written.
    """

    def __init__(self, options: EncodeOptions, *, is_shard: bool = False) -> None:
        if options.output.startswith(("http://", "https://")):
            raise UsageError(f"{shown(options.output)}: nothing can be written to a web server")
        self._asked = options
        self._is_shard = is_shard
        self._prefixes = options.output_names
        self._folder = scratch_folder(options)
        self._note = os.path.join(self._folder, _NOTE)
        self.options = replace(
            options,
            output=self._here(options.output),
            output_names={key: self._here(url) for key, url in self._prefixes.items()},
        )

    def __enter__(self) -> Delivery:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # there may be work for the next run
            os.rmdir(self._folder)

    def prepare(self) -> None:
        """Before any work: what must not be replaced, and whether anything can be written.

        Raises OutputError.
        """
        own = self._sent()
        for prefix in self._prefixes.values():
            for url in (manifest_path(prefix), *(() if self._is_shard else _data(prefix))):
                if _name(url) not in own and not self._asked.overwrite and stat(url) is not None:
                    raise _exists(url)
        check_writable(self._asked.output + UNFINISHED)
        with cannot_write(self._folder):
            os.makedirs(self._folder, exist_ok=True)

    def send(self, manifests: list[Manifest]) -> None:
        """Send the finished datasets, and remove them here. Raises OutputError."""
        self._check_not_inputs(manifests)
        urls = [url for prefix in self._prefixes.values() for url in _data(prefix)]
        urls.append(rejects_path(self._asked))
        sent = self._sent()
        for url in urls:
            if sent.get(_name(url)):  # by a run that was killed meanwhile
                abort(url, sent[_name(url)])
        if self._asked.overwrite:
            # Nothing is left that says of new files that they are the old ones.
            for prefix in self._prefixes.values():
                for url in (manifest_path(prefix), idx_path(prefix), trace_path(prefix)):
                    remove(url)
        sent = {}
        made = list(zip(self._prefixes.values(), manifests, strict=True))
        for prefix, manifest in made if self._is_shard else ():
            # What another has finished meanwhile is never written over.
            if stat(manifest_path(prefix)) is not None and not _same(prefix, manifest):
                raise self._differs(prefix, manifest)
        for url in urls:
            if os.path.exists(self._here(url)):
                self._send(url, sent)
        for prefix, manifest in made:
            self._send_manifest(prefix, manifest)
        for name in [
            *map(self._here, urls),
            *map(manifest_path, self.options.output_names.values()),
        ]:
            remove_file(name)
        remove_file(self._note)

    def _send_manifest(self, prefix: str, manifest: Manifest) -> None:
        with open(manifest_path(self._here(prefix)), "rb") as file:
            content = file.read()
        if create(content, manifest_path(prefix)) or _same(prefix, manifest):
            return
        error = self._differs(prefix, manifest)
        if self._is_shard:  # its files may be a mix of both runs: no manifest may stay
            remove(manifest_path(prefix))
        raise error

    def _send(self, url: str, sent: dict[str, str]) -> None:
        """Send one file, and note that, and its upload as long as that is under way."""

        def begun(upload: str) -> None:
            replace_json(self._note, sent | {_name(url): upload})

        sent[_name(url)] = ""
        replace_json(self._note, sent)
        send(self._here(url), url, begun)

    def _differs(self, prefix: str, manifest: Manifest) -> OutputError:
        """Another run has finished in the meantime, with other bytes."""
        url = manifest_path(prefix)
        if not self._is_shard:
            return _exists(url)
        sums = " and ".join(checksum_of(one.bin) for one in (Manifest.load(prefix), manifest))
        return OutputError(
            f"{shown(url)}: two machines have made this shard, and not the same bytes ({sums}): "
            "one of them computes wrong, or the tokenizer's library is not the same on both"
        )

    def _here(self, url: str) -> str:
        """The path in the scratch folder of what shall have a URL."""
        return os.path.join(self._folder, _name(url))

    def _check_not_inputs(self, manifests: list[Manifest]) -> None:
        written = [
            url
            for prefix in self._prefixes.values()
            for url in (manifest_path(prefix), *_data(prefix))
        ]
        inputs = (entry["name"] for entry in manifests[0].inputs)
        for name in (*inputs, *self._asked.tokenizer_files):
            if any(same_object(name, url) for url in written):
                raise UsageError(f"{shown(name)} is an input and an output: choose another one")

    def _sent(self) -> dict[str, str]:
        """The objects that a run from this folder has begun, with uploads that were under way."""
        if not os.path.exists(self._note):
            return {}
        return {str(name): str(upload) for name, upload in read_object(self._note).items()}


def scratch_folder(options: EncodeOptions) -> str:
    """The folder of a run to a store: of its name, so that it is found again."""
    url = options.output
    name = f"tokpack-{_name(url)}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    return os.path.join(options.scratch or os.environ.get("TMPDIR") or os.curdir, name)


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def _data(prefix: str) -> tuple[str, str, str]:
    return bin_path(prefix), idx_path(prefix), trace_path(prefix)


def _same(prefix: str, manifest: Manifest) -> bool:
    """Whether the dataset that is there has the data that ``manifest`` tells of."""
    try:
        there = Manifest.load(prefix)
    except FormatError:
        return False
    return (there.bin, there.idx, there.trace) == (manifest.bin, manifest.idx, manifest.trace)


def _exists(url: str) -> OutputError:
    return OutputError(
        f"{shown(url)} exists: choose another output, or replace it with overwrite (--overwrite)"
    )
