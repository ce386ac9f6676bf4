"""Runs with their output on a store: made in a scratch folder on this machine, then uploaded.

The run in the scratch folder is like any run to a disk, and can be resumed. Manifests are uploaded
last, and only if there is none, or still the one to be replaced. So a dataset is there completely
or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.dataset import Manifest, bin_path, idx_path, manifest_path
from tokpack.dataset.manifest import checksum_of
from tokpack.dataset.outputs import describes_same_data, same_data, write_hub_card
from tokpack.encoding.publish import check_replaced, targets_of
from tokpack.errors import BusyError, OutputError, UsageError, option
from tokpack.storage import (
    NewObjects,
    Range,
    SentNote,
    TakenError,
    check_writable,
    exists,
    remove,
    scratch_path,
    shown,
    stat,
)
from tokpack.storage.disk import UNFINISHED, Lock, remove_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan

_TRIES = 4  # to send a shard that another machine may make at the same time


class Delivery:
    """The upload of a run's datasets; ``close`` removes the scratch folder if it is empty.

    ``options`` are those of the run in the scratch folder. A shard has a ``check``, which raises if
    its plan was replaced, and a ``beat``, called for each part of a file that is sent. A shard's
    files on the store without a manifest come from another machine that is making the same shard,
    and are replaced. UsageError for a web server, to which nothing can be written.
    """

    def __init__(
        self,
        options: EncodeOptions,
        check: Callable[[], None] | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        if options.output.startswith(("http://", "https://")):
            raise UsageError(f"{shown(options.output)}: nothing can be written to a web server")
        self._asked = options
        self._is_shard = check is not None
        self._check, self._beat = check or (lambda: None), beat
        self._prefixes = options.output_names
        self._folder = scratch_path(options.output, options.scratch)
        self._lock = contextlib.ExitStack()
        self._note = SentNote(self._folder)
        self.options = replace(
            options,
            output=self._here(options.output),
            output_names={key: self._here(url) for key, url in self._prefixes.items()},
        )

    def close(self) -> None:
        """Release the scratch folder."""
        self._lock.close()

    def _hold(self) -> None:
        """Lock the scratch folder. BusyError if another run on this machine works in it."""
        lock = self._lock.enter_context(Lock(self._folder))
        self._lock.callback(lock.leave)  # else the next run can go on from what is there

    def prepare(self, plan: Plan) -> None:
        """Check, before any work, that outputs may be replaced. UsageError, OutputError."""
        self._hold()
        self._check()
        self._remove_partial()
        if not self._is_shard:
            self._versions = check_replaced(self._asked, plan, tells=False)
        elif not self._asked.overwrite:
            for prefix in self._prefixes.values():
                if exists(manifest_path(prefix)):
                    self._check_plan(prefix, plan)

    def discard(self) -> None:
        """Remove the scratch folder of a run that was killed while sending.

        It is called if the dataset is complete on the store by now.
        """
        if os.path.exists(self._note.path):
            with contextlib.suppress(BusyError):
                self._hold()
                self._remove_partial()
                shutil.rmtree(self._folder, ignore_errors=True)

    def check_writable(self) -> None:
        """Raise OutputError if nothing can be written to the store."""
        check_writable(self._asked.output + UNFINISHED)

    def send(self, plan: Plan, manifests: list[Manifest]) -> None:
        """Send the finished datasets, and remove them here. Raises OutputError."""
        datasets = dict(zip(self._prefixes.values(), manifests, strict=True))
        tries = _TRIES if self._is_shard else 1
        while not _are_made(datasets):
            try:
                self._send(plan, datasets)
                break
            except TakenError:  # by a machine that makes the same shard: it may be gone again
                tries -= 1
                if not tries:
                    raise
        if not self._is_shard:
            for prefix, manifest in datasets.items():
                write_hub_card(prefix, manifest)
        for url in self._urls(datasets):
            remove_file(self._here(url))
        remove_file(self._note.path)

    def _send(self, plan: Plan, datasets: Mapping[str, Manifest]) -> None:
        # Stores have no locks, and another machine may make the same dataset at the same time. So
        # objects are replaced or removed only in the version (ETag) that was looked at here: if
        # another machine has written one since, this write fails and its work stays. The order:
        # remove old manifests, send data, send manifests.
        kept_urls: list[str] = []  # manifests that stay
        if self._is_shard:
            self._check()
            # Files of a shard without its manifest are an unfinished copy of the same bytes.
            anyway = replace(self._asked, overwrite=True)
            self._versions = check_replaced(anyway, plan, files=1, tells=False)
            if _are_made(datasets):  # another machine is done: all shards may be committed already
                return
            for prefix, manifest in datasets.items():
                if describes_same_data(prefix, manifest):  # only its data are missing
                    kept_urls.append(manifest_path(prefix))
                elif not self._asked.overwrite and exists(manifest_path(prefix)):
                    self._check_plan(prefix, plan)
                    raise self._differs(prefix, manifest)
        else:  # a resumed run keeps its number of .bin files, whatever the plan says
            files = next(iter(datasets.values())).bin_files
            new = check_replaced(self._asked, plan, files=files, tells=False)
            self._versions = new | self._versions
        data = [url for url in self._urls(datasets) if url.removesuffix(".json") not in datasets]
        with NewObjects(self._versions, self._note, lambda: _are_made(datasets)) as objects:
            # The versions were looked at first, and the plan is checked now: objects made by a
            # newer plan after this check have other versions, so they are not replaced.
            self._check()
            # Old manifests and indices are removed first, so that none describes new data. A
            # shard's data are not removed but replaced in place: another machine may have sent a
            # manifest for the same bytes already.
            for url in (*map(manifest_path, datasets), *self._versions):
                stays = url in kept_urls or (
                    url in data and (self._is_shard or url.endswith(".bin"))
                )
                if not stays:
                    objects.remove(url)
            for url in data:
                here = self._here(url)
                if os.path.exists(here):
                    self._check()
                    whole = [Range.of_file(here)]
                    objects.write(url, whole, lambda _: self._beat(), stays=self._is_shard)
            for prefix, manifest in datasets.items():
                if manifest_path(prefix) not in kept_urls:
                    self._send_manifest(prefix, manifest, plan, objects)
            objects.check()

    def _remove_partial(self) -> None:
        """Remove what a killed run from this folder had sent.

        Complete datasets stay. So do files of a shard, because another machine's manifest may be
        for the same bytes; they are replaced when the shard is made.
        """
        whole = map(manifest_path, self._prefixes.values())
        self._note.remove_objects(whole, only_uploads=self._is_shard)

    def _send_manifest(
        self, prefix: str, manifest: Manifest, plan: Plan, objects: NewObjects
    ) -> None:
        with open(manifest_path(self._here(prefix)), "rb") as file:
            content = file.read()
        self._check()
        try:
            objects.write_last(manifest_path(prefix), content)
        except TakenError:
            if not self._is_shard:
                raise
            self._check()
            # Another machine has finished this shard meanwhile. If the bytes are the same, all is
            # well, and ``send`` tries again, to check that it is complete. If not, one of the two
            # machines computes wrongly, and it is unknown which: raise an error.
            there = stat(manifest_path(prefix))
            if there is None or describes_same_data(prefix, manifest):
                raise
            self._check_plan(prefix, plan)
            error = self._differs(prefix, manifest)
            # Our data have replaced the other machine's, so its manifest would be wrong now.
            if objects.are_there([bin_path(prefix), idx_path(prefix)]):
                remove(manifest_path(prefix), there)
            raise error from None

    def _differs(self, prefix: str, manifest: Manifest) -> OutputError:
        """The error if another machine has finished meanwhile with different bytes."""
        url = manifest_path(prefix)
        sums = " and ".join(checksum_of(one.bin) for one in (Manifest.load(prefix), manifest))
        return OutputError(
            f"{shown(url)}: two machines have made this shard, and not the same bytes ({sums}): "
            "one of them computes wrong, or the tokenizer's library is not the same on both"
        )

    @staticmethod
    def _check_plan(prefix: str, plan: Plan) -> None:
        """Raise OutputError if the shard on the store is from another plan."""
        if Manifest.load(prefix).options.get("plan") != plan.options.get("plan"):
            raise OutputError(
                f"{shown(manifest_path(prefix))} exists and is of another plan: replace it with "
                f"{option('overwrite', True)}"
            )

    def _here(self, url: str) -> str:
        """The path in the scratch folder for a URL."""
        return os.path.join(self._folder, url.rpartition("/")[2])

    def _urls(self, datasets: Mapping[str, Manifest]) -> list[str]:
        """The URLs of all files, in the order in which they are sent; some may not exist."""
        files = next(iter(datasets.values())).bin_files
        return list(targets_of(self._asked, files).values())


def _are_made(datasets: Mapping[str, Manifest]) -> bool:
    return all(same_data(prefix, manifest) for prefix, manifest in datasets.items())
