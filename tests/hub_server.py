"""A small Hugging Face Hub on loopback, as its client sees it."""

import contextlib
import hashlib
import http.server
import json
import threading
from urllib.parse import unquote, urlsplit


class HubServer(http.server.ThreadingHTTPServer):
    """Serves models from folders.

    `models[NAME][REVISION]` is a folder; `private` names need the token "secret",
    `gated` names more than that. `requests` holds what was asked for. `cut` cuts the
    content of files after that many bytes, once; `broken` answers everything with 503.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models, self.requests = {}, []
        self.private, self.gated = set(), set()
        self.cut, self.broken = 0, False

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


def commit_of(folder):
    """A commit for the present content of a folder."""
    digest = hashlib.sha1(usedforsecurity=False)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def serve_hub():
    """A running server."""
    server = HubServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer()

    def do_HEAD(self):
        self._answer()

    def log_message(self, *arguments):
        del arguments

    def _answer(self):
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if self.server.broken:
            return self._send(503)
        is_api = path.startswith("/api/models/")
        parts = path.removeprefix("/api/models").strip("/").split("/")
        name, rest = "/".join(parts[:2]), parts[2:]
        folders = self.server.models.get(name)
        token = self.headers.get("authorization")
        if folders is None or (name in self.server.private and not token):
            return self._send(401, code="RepoNotFound")
        if name in self.server.gated:
            return self._send(403, code="GatedRepo")
        revision = rest[1] if len(rest) > 1 else "main"
        by_commit = {commit_of(folder): folder for folder in folders.values()}
        folder = folders.get(revision) or by_commit.get(revision)
        if folder is None:
            return self._send(404, code="RevisionNotFound")
        if is_api:
            return self._send_json(name, folder, in_tree="tree" in rest[:1])
        return self._send_file(folder, folder / "/".join(rest[2:]))

    def _send_json(self, name, folder, in_tree):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        listed = [(p.relative_to(folder).as_posix(), p.stat().st_size) for p in files]
        if in_tree:
            values = [
                {"type": "file", "path": path, "size": size, "oid": "0" * 40}
                for path, size in listed
            ]
        else:
            found = [{"rfilename": path, "size": size} for path, size in listed]
            values = {"id": name, "sha": commit_of(folder), "siblings": found}
        self._send(200, json.dumps(values).encode())

    def _send_file(self, folder, path):
        if not path.is_file():
            return self._send(404, code="EntryNotFound")
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit_of(folder)}
        start, status = 0, 200
        if asked := self.headers.get("range"):
            start, status = int(asked.removeprefix("bytes=").partition("-")[0]), 206
            end = len(content)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{end}"
        self._send(status, content[start:], **headers)

    def _send(self, status, content=b"", code="", **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if code:
            self.send_header("X-Error-Code", code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            if self.server.cut and len(content) > self.server.cut:
                content, self.server.cut = content[: self.server.cut], 0
                self.close_connection = True
            with contextlib.suppress(OSError):
                self.wfile.write(content)
