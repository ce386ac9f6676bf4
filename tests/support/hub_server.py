"""A hub of this machine: repositories of datasets that the hub's own library reads and writes.

Regular files go with their commit, files that end with .bin by git's protocol for large files, as
on the real hub; not by Xet (HF_HUB_DISABLE_XET=1). Every commit is a revision "main".
"""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from support.stores import Handler, Plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

Answer = tuple[int, dict[str, str], bytes]
_COMMIT = "0" * 40
_MISSING_FILE: Answer = (404, {"X-Error-Code": "EntryNotFound"}, b"")
_MISSING_REPOSITORY: Answer = (404, {"X-Error-Code": "RepoNotFound"}, b"")


@dataclass
class Hub:
    """What it has: of each repository ``owner/name`` the files by their paths, and its commits."""

    address: str
    repositories: dict[str, dict[str, bytes]]
    commits: list[str] = field(default_factory=list)
    private: dict[str, bool] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)  # by sha256

    def settings(self) -> dict[str, str]:
        """The environment of who uses it."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": "hf_of_a_test",
            "NO_PROXY": "127.0.0.1",
        }


@contextmanager
def hub(repositories: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """A hub with these repositories."""
    state = Hub("", repositories)

    class Server(_Server):
        plan = Plan()
        hub = state

    with serving(Server) as address:
        state.address = address
        yield state


class _Server(Handler):
    hub: Hub

    def answer(self, body: bytes) -> Answer:
        path = unquote(urlsplit(self.path).path)
        if path in ("/api/repos/create", "/api/validate-yaml"):
            is_new = path.endswith("create")
            return self._create(json.loads(body)) if is_new else _as_json({"errors": []})
        if path.startswith("/large/"):
            self.hub.large[path.removeprefix("/large/")] = body
            return 200, {}, b""
        parts = path.removeprefix("/api").removeprefix("/datasets/").split("/")
        repository = "/".join(parts[:2]).removesuffix(".git")
        files = self.hub.repositories.get(repository)
        if files is None:
            return _MISSING_REPOSITORY
        if path.startswith("/api/"):
            return self._of_repository(repository, files, parts[2:], body)
        if path.endswith("/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        return self._file(files.get("/".join(parts[4:])))

    def _of_repository(
        self, repository: str, files: dict[str, bytes], words: list[str], body: bytes
    ) -> Answer:
        what = words[0] if words else ""
        rows = [
            {"type": "file", "path": name, "size": len(content), "oid": _sha1(content)}
            for name, content in sorted(files.items())
        ]
        if what == "paths-info":
            asked = parse_qs(body.decode())["paths"]
            rows = [row for row in rows if row["path"] in asked]
        below = "".join(f"{part}/" for part in words[2:]) if what == "tree" else ""
        inside = [row for row in rows if str(row["path"]).startswith(below)]
        answers = {
            "auth-check": lambda: (403 if repository == "owner/of-others" else 200, {}, b""),
            "paths-info": lambda: _as_json(rows),
            "tree": lambda: _as_json(inside) if inside or not below else _MISSING_FILE,
            "preupload": lambda: self._preupload(json.loads(body)),
            "commit": lambda: self._commit(files, body.decode()),
        }
        facts = {"id": repository, "sha": _COMMIT, "siblings": []}
        return answers.get(what, lambda: _as_json(facts))()

    def _create(self, asked: dict[str, str]) -> Answer:
        name = f"{asked.get('organization') or 'owner'}/{asked['name']}"
        if not name.startswith("owner/"):
            return 403, {}, b""
        if name in self.hub.repositories:
            return 409, {}, b'{"error": "exists"}'
        self.hub.repositories[name] = {}
        self.hub.private[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
        return _as_json({"url": f"{self.hub.address}/datasets/{name}"})

    def _preupload(self, asked: dict[str, list[dict[str, str]]]) -> Answer:
        return _as_json(
            {
                "files": [
                    {
                        "path": one["path"],
                        "uploadMode": "lfs" if one["path"].endswith(".bin") else "regular",
                        "shouldIgnore": False,
                    }
                    for one in asked["files"]
                ]
            }
        )

    def _batch(self, asked: dict[str, list[dict[str, str]]]) -> Answer:
        objects = [
            one | {"actions": {"upload": {"href": f"{self.hub.address}/large/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        return _as_json({"transfer": "basic", "objects": objects})

    def _commit(self, files: dict[str, bytes], lines: str) -> Answer:
        for line in lines.splitlines():
            row = json.loads(line)
            value = row["value"]
            if row["key"] == "header":
                self.hub.commits.append(value["summary"])
            elif row["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                content = self.hub.large[value["oid"]]
                assert hashlib.sha256(content).hexdigest() == value["oid"]
                files[value["path"]] = content
            else:
                del files[value["path"]]
        address = f"{self.hub.address}/datasets/owner/name/commit/{_COMMIT}"
        return _as_json({"success": True, "commitOid": _COMMIT, "commitUrl": address})

    def _file(self, content: bytes | None) -> Answer:
        if content is None:
            return _MISSING_FILE
        asked = self.headers.get("Range", "bytes=0-").removeprefix("bytes=")
        first, _, last = asked.partition("-")
        begin, end = int(first), min(int(last or len(content)) + 1, len(content))
        headers = {"ETag": f'"{_sha1(content)}"', "X-Repo-Commit": _COMMIT}
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return 206, headers, content[begin:end]


def _as_json(value: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
