"""Emulators of GCS and Azure, each with an empty container "texts"."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import sys
from collections import defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from support.ports import listening, own_port
from support.stores import BUCKET, Handler, Plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACCOUNT = "devstoreaccount1"  # of every emulator of Azure, as is the key
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_RELATED = "multipart/related; boundary=x"
Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def azure(command: str) -> Iterator[dict[str, str]]:
    """Azurite, whose program is ``command``; gives the settings of its users."""
    port = own_port()
    words = f"{command} --silent --inMemoryPersistence --skipApiVersionCheck --disableTelemetry"
    words += f" --blobHost 127.0.0.1 --blobPort {port}"
    with listening(words.split(), port):
        now = format_datetime(datetime.now(UTC), usegmt=True)
        signed = f"PUT{chr(10) * 12}x-ms-date:{now}\nx-ms-version:2021-08-06\n"
        signed += f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers = {"x-ms-date": now, "x-ms-version": "2021-08-06", "Content-Length": "0"}
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        path = f"/{ACCOUNT}/{BUCKET}?restype=container"
        assert _ask(f"127.0.0.1:{port}", "PUT", path, headers=headers)[0] == 201
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
        }


@contextmanager
def gcs(folder: Path) -> Iterator[dict[str, str]]:
    """gcp-storage-emulator, behind a server that knows XML, too; gives the settings of its users.

    obstore reads and writes by GCS's XML interface, which no emulator has whole.
    """
    port = own_port()
    command = [sys.executable, "-W", "ignore", "-m", "gcp_storage_emulator", "start", "-q", "-M"]
    command += ["-H", "127.0.0.1", "--port", str(port), "--default-bucket", BUCKET]

    class Front(_Xml):
        netloc = f"127.0.0.1:{port}"
        plan = Plan()
        uploads: ClassVar[defaultdict[str, dict[int, bytes]]] = defaultdict(dict)

    with listening(command, port), serving(Front) as address:
        account = {"gcs_base_url": address, "disable_oauth": True, "client_email": ""}
        file = folder / "account.json"
        file.write_text(json.dumps(account | {"private_key": "", "private_key_id": ""}))
        yield {
            "GOOGLE_SERVICE_ACCOUNT": str(file),
            "GOOGLE_BASE_URL": address,
            "GOOGLE_SKIP_SIGNATURE": "true",
        }


def _ask(
    netloc: str, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(netloc, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class _Xml(Handler):
    """The XML interface of GCS by the JSON interface of an emulator; what is JSON passes."""

    netloc: str
    uploads: ClassVar[defaultdict[str, dict[int, bytes]]]

    def answer(self, body: bytes) -> Answer:
        parts = urlsplit(self.path)
        query = {
            name: some[0] for name, some in parse_qs(parts.query, keep_blank_values=True).items()
        }
        if parts.path.startswith("/storage/"):
            headers = {"Content-Type": "application/json"}
            status, content = _ask(self.netloc, self.command, self.path, body, headers)
            return status, headers, content
        key = unquote(parts.path.removeprefix(f"/{BUCKET}")).lstrip("/")
        if not parts.path.startswith(f"/{BUCKET}"):
            return 404, {}, b"<Error><Code>NoSuchBucket</Code></Error>"
        if "list-type" in query:
            return self._list(query)
        if "uploads" in query or "uploadId" in query:
            return self._part(key, query, body)
        if self.command in ("PUT", "DELETE"):
            return self._put(key, body) if self.command == "PUT" else self._delete(key)
        return self._get(key)

    def _put(self, key: str, body: bytes) -> Answer:
        if self.headers.get("x-goog-if-generation-match") == "0" and self._found(key):
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}"
        headers = {"Content-Type": "application/octet-stream"}
        if not body:  # which the emulator takes in this form alone
            path, headers = path.replace("media", "multipart"), {"Content-Type": _RELATED}
            meta = json.dumps({"name": key})
            body = f"--x\r\nContent-Type: application/json\r\n\r\n{meta}\r\n".encode()
            body += b"--x\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--x--\r\n"
        assert _ask(self.netloc, "POST", path, body, headers)[0] == 200
        return 200, {"ETag": self._tag(self._found(key))}, b""

    def _delete(self, key: str) -> Answer:
        return _ask(self.netloc, "DELETE", _json(key))[0], {}, b""

    def _part(self, key: str, query: dict[str, str], body: bytes) -> Answer:
        if "uploads" in query:
            name = f"<UploadId>{key}</UploadId><Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key>"
            text = f"<InitiateMultipartUploadResult>{name}</InitiateMultipartUploadResult>"
            return 200, {}, text.encode()
        if self.command == "PUT":
            self.uploads[key][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'}, b""
        parts = self.uploads.pop(key, {})
        if self.command == "DELETE":
            return 204, {}, b""
        _, headers, _ = self._put(key, b"".join(parts[number] for number in sorted(parts)))
        name = "CompleteMultipartUploadResult"
        return 200, headers, f"<{name}><ETag>{headers['ETag']}</ETag></{name}>".encode()

    def _get(self, key: str) -> Answer:
        found = self._found(key)
        if not found:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        tag = self._tag(found)
        if self.headers.get("If-Match", tag) != tag:
            return 412, {}, b""
        when = format_datetime(datetime.fromisoformat(found["updated"]), usegmt=True)
        headers = {"ETag": tag, "Last-Modified": when, "Content-Length": found["size"]}
        if self.command == "HEAD":
            return 200, headers, b""
        content = _ask(self.netloc, "GET", f"/download{_json(key)}?alt=media")[1]
        wanted = self.headers.get("Range")
        if not wanted:
            return 200, headers, content
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content)) + 1, len(content))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        headers["Content-Length"] = str(end - begin)
        return 206, headers, content[begin:end]

    def _list(self, query: dict[str, str]) -> Answer:
        names = {name: query[name] for name in ("prefix", "delimiter") if query.get(name)}
        path = f"/storage/v1/b/{BUCKET}/o?" + "&".join(f"{k}={quote(v)}" for k, v in names.items())
        listed = json.loads(_ask(self.netloc, "GET", path)[1])
        rows = [
            f"<Contents><Key>{escape(one['name'])}</Key><Size>{one['size']}</Size>"
            f"<LastModified>{one['updated']}</LastModified><ETag>{self._tag(one)}</ETag></Contents>"
            for one in listed.get("items", ())
        ]
        rows += [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in listed.get("prefixes", ())
        ]
        return 200, {}, f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode()

    def _found(self, key: str) -> Any:
        status, content = _ask(self.netloc, "GET", _json(key))
        return json.loads(content) if status == 200 else None

    @staticmethod
    def _tag(found: Any) -> str:
        return f'"{found["generation"]}"'


def _json(key: str) -> str:
    return f"/storage/v1/b/{BUCKET}/o/{quote(key, safe='')}"
