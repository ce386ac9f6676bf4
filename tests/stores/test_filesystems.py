"""Stores that fsspec opens."""

from __future__ import annotations

from typing import Any

import pytest

from tokpack.storage.objects.filesystems import FileSystems


def test_a_listing_is_as_new_as_a_look_at_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many file systems list a folder once and remember that."""
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    plain, listings = memory.ls, dict[str, Any]()

    def ls(self: Any, path: str, detail: bool = True, **_: Any) -> Any:
        if path not in listings:
            listings[path] = plain(self, path, detail=True)
        rows = listings[path]
        return rows if detail else [row["name"] for row in rows]

    monkeypatch.setattr(memory, "ls", ls)
    monkeypatch.setattr(memory, "invalidate_cache", lambda self, path=None: listings.clear())
    monkeypatch.setattr(memory, "store", {})
    backend, url = FileSystems(iter), "memory://listed"
    for number in range(1, 3):
        memory.store[f"/listed/{number}"] = memory().open(f"/other/{number}", "wb")
        assert len(backend.level(url)[1]) == len(list(backend.below(url))) == number
