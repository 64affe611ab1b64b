"""A small Hugging Face Hub on loopback, as its client sees it."""

import base64
import contextlib
import hashlib
import http.server
import json
import shutil
import tempfile
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from huggingface_hub import constants

USERS = {"secret": "write", "reader": "read"}  # tokens of the user "me"
NAMESPACES = ("me", "people")  # the user and an organization that the user belongs to
_LICENSES = ("apache-2.0", "cc-by-4.0", "mit", "other", "unknown")
_LARGE = (".safetensors", ".bin")  # files that are stored by their digest


class HubServer(http.server.ThreadingHTTPServer):
    """Serves models and datasets from folders, and takes new models.

    `models[NAME][REVISION]` is a folder, and so is `datasets[NAME][REVISION]`;
    `private` names need the token "secret", `gated` names more than that. `requests`
    holds what was asked for. `cut` cuts the content of files after that many bytes,
    once; `broken` answers everything with 503, and `answers` a request by a part of its
    line, with a status, {"POST /api/repos": 500}, a status and JSON, or JSON alone.
    `spoil` changes the content of a file on its way, given its name, and `misstate` the
    answer about a repository.

    What is pushed is written below `root`, each commit to a folder of its own.
    `objects` holds large files by their SHA-256; the client needs HF_HUB_DISABLE_XET=1
    to send them so. `log[NAME][REVISION]` are commits, the first one first.
    """

    def __init__(self, root):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models, self.datasets, self.requests = {}, {}, []
        self.private, self.gated = set(), set()
        self.cut, self.broken, self.answers = 0, False, {}
        self.spoil = lambda name, content: content
        self.misstate = lambda values: values
        self.root = Path(root)
        self.objects, self.log = {}, {}

    def commit(self, name, revision, folder):
        """Adds a commit to a branch: a copy of the folder."""
        place = self.root / name / commit_of(folder)
        if not place.exists():
            shutil.copytree(folder, place)
        self.models.setdefault(name, {})[revision] = place
        self.log.setdefault(name, {}).setdefault(revision, []).append(place)
        return commit_of(place)

    def stop(self):
        """Answers nothing any more."""
        self.shutdown()
        self.server_close()

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


def describe_file(folder, path):
    """A file of a commit as the Hub lists it."""
    name, content = path.relative_to(folder).as_posix(), path.read_bytes()
    header = f"blob {len(content)}\0".encode()
    blob = hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
    said = {"path": name, "size": len(content), "blobId": blob}
    if name.endswith(_LARGE):
        sha = hashlib.sha256(content).hexdigest()
        lfs = {"sha256": sha, "oid": sha, "size": len(content), "pointerSize": 134}
        said["lfs"] = lfs
    return said


def files_of(folder):
    """The files of a commit as the Hub lists them."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [describe_file(folder, path) for path in files]


def oid_of(said):
    """What tells a file's content: the SHA-256 of a large one, else git's."""
    return said and said.get("lfs", {}).get("sha256", said["blobId"])


@contextlib.contextmanager
def serve_hub(root):
    """A running server."""
    server = HubServer(root)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.stop()


def use_hub(server, folder, monkeypatch):
    """Makes the client ask this server, and keep what it reads below a folder."""
    place, address = str(folder / "hub"), server.address
    variables = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    variables |= {"HF_ENDPOINT": address, "HF_HUB_CACHE": place}
    for name, value in variables.items():  # of programs
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    values = {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    values |= {"ENDPOINT": address, "HF_HUB_CACHE": place}
    files = address + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {**values, "HUGGINGFACE_CO_URL_TEMPLATE": files}.items():
        monkeypatch.setattr(constants, name, value)


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        del arguments

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if self._is_answered(path):
            return
        if path == "/api/whoami-v2":
            return self._send_user()
        # A revision may hold a slash, which is %2F in its address.
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]
        kind, is_api = "models", parts[0] == "api"
        if is_api:
            kind, parts = parts[1], parts[2:]
        elif parts[0] == "datasets":
            kind, parts = parts[0], parts[1:]
        name, rest = "/".join(parts[:2]), parts[2:]
        folders = getattr(self.server, kind, {}).get(name)
        token = self.headers.get("authorization")
        if folders is None or (name in self.server.private and not token):
            return self._send(401, code="RepoNotFound")
        if name in self.server.gated:
            return self._send(403, code="GatedRepo")
        revision = rest[1] if len(rest) > 1 else "main"
        if rest[:1] == ["commits"]:
            return self._send_log(name, rest[1])
        if rest[:1] == ["refs"]:
            refs = [
                {"name": n, "ref": f"refs/heads/{n}", "targetCommit": commit_of(f)}
                for n, f in folders.items()
            ]
            return self._send_value({"branches": refs, "converts": [], "tags": []})
        by_commit = {commit_of(folder): folder for folder in folders.values()}
        folder = folders.get(revision) or by_commit.get(revision)
        if folder is None:
            return self._send(404, code="RevisionNotFound")
        if is_api:
            below = "/".join(rest[2:]) if rest[:1] == ["tree"] else None
            return self._send_json(name, folder, below)
        return self._send_file(folder, folder / "/".join(rest[2:]))

    do_HEAD = do_GET

    def _is_answered(self, path):
        """Notes a request, and whether `broken` or `answers` have answered it."""
        self.server.requests.append(line := f"{self.command} {path}")
        found = [code for part, code in self.server.answers.items() if part in line]
        answer = 503 if self.server.broken else next(iter(found), None)
        if isinstance(answer, int):
            self._send(answer)
        elif answer is not None:
            status, value = answer if isinstance(answer, tuple) else (200, answer)
            self._send_value(value, status)
        return answer is not None

    def _role(self):
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        return USERS.get(token)

    def _send_user(self):
        if not self._role():
            return self._send_value({"error": "Invalid username or password."}, 401)
        orgs = [{"name": name, "type": "org"} for name in NAMESPACES[1:]]
        auth = {"type": "access_token", "accessToken": {"role": self._role()}}
        about = {"type": "user", "name": NAMESPACES[0], "orgs": orgs, "auth": auth}
        self._send_value(about)

    def _send_log(self, name, revision):
        empty = {"title": "", "message": "", "authors": []}
        empty["date"] = "2026-11-27T00:00:00.000Z"
        folders = reversed(self.server.log.get(name, {}).get(revision, []))
        self._send_value([{"id": commit_of(folder), **empty} for folder in folders])

    def _send_json(self, name, folder, below):
        """A repository; or, unless it is None, the files in a folder of it."""
        listed = files_of(folder)
        if below is None:
            found = [{"rfilename": each.pop("path"), **each} for each in listed]
            values = {"id": name, "sha": commit_of(folder), "siblings": found}
            values["private"] = name in self.server.private
            return self._send_value(self.server.misstate(values))
        place = f"{below}/" if below else ""
        values, inner = [], set()
        for each in listed:
            inside = each["path"].removeprefix(place)
            if "/" in inside and "recursive=true" not in self.path.lower():
                inner.add(inside.partition("/")[0])
            elif each["path"].startswith(place):
                values.append({"type": "file", **each, "oid": each.pop("blobId")})
        values += [
            {"type": "directory", "path": place + name, "oid": "0" * 40}
            for name in sorted(inner)
        ]
        self._send_value(values)

    def _send_value(self, value, status=200):
        self._send(status, json.dumps(value).encode())

    def do_POST(self):
        """Takes what is pushed."""
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self._is_answered(path):
            return
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        if path.startswith("/objects/"):
            oid = path.removeprefix("/objects/")
            if hashlib.sha256(body).hexdigest() != oid:
                return self._send(400)
            self.server.objects[oid] = body
            return self._send(200)
        if self._role() != "write":
            return self._send(403 if self._role() else 401)
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        name, _, rest = path.removeprefix("/api/models").strip("/").partition(".git/")
        if rest == "info/lfs/objects/batch":
            return self._send_actions(json.loads(body)["objects"])
        *owner_and_name, action, revision = path.removeprefix("/api/models/").split("/")
        name = "/".join(owner_and_name)
        if name not in self.server.models:
            return self._send(404, code="RepoNotFound")
        if action == "branch":
            return self._branch(name, revision, json.loads(body))
        folder = self.server.models[name].get(revision)
        if folder is None:
            return self._send(404, code="RevisionNotFound")
        if action == "preupload":
            return self._send_modes(folder, json.loads(body)["files"])
        lines = [json.loads(line) for line in body.splitlines()]
        return self._commit(name, revision, folder, lines)

    do_PUT = do_POST

    def _validate(self, card):
        """As the Hub checks the metadata of a card, in small."""
        begin, *parts = card.split("---\n", 2)
        values = yaml.safe_load(parts[0]) if len(parts) == 2 and not begin else {}
        problems = []
        if values.get("license", "mit") not in _LICENSES:
            problems.append(f'"license" must be one of [{", ".join(_LICENSES)}]')
        language = values.get("language", "en")
        for each in [language] if isinstance(language, str) else language:
            if len(each) not in (2, 3):
                problems.append(f'"language[0]" must only contain lowercase: {each}')
        results = [
            x for model in values.get("model-index", ()) for x in model["results"]
        ]
        if any({"task", "dataset", "metrics"} - set(result) for result in results):
            problems.append('"model-index[0].results[0]" lacks a key')
        errors = [{"message": problem} for problem in problems]
        warnings = [] if values else [{"message": "empty or missing yaml metadata"}]
        answer = {"errors": errors, "warnings": warnings}
        self._send_value(answer, 400 if errors else 200)

    def _create(self, asked):
        owner = asked["organization"] or NAMESPACES[0]
        name = f"{owner}/{asked['name']}"
        if owner not in NAMESPACES:
            return self._send(403)
        url = {"url": f"{self.server.address}/{name}"}
        if name in self.server.models:
            return self._send_value(url, 409)
        if asked.get("visibility") == "private" or asked.get("private"):
            self.server.private.add(name)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / ".gitattributes").write_text("*.safetensors filter=lfs\n")
            self.server.commit(name, "main", Path(folder))
        self._send_value(url)

    def _branch(self, name, branch, asked):
        start = asked.get("startingPoint", "main")
        if branch in self.server.models[name]:
            return self._send(409)
        known = [each for log in self.server.log[name].values() for each in log]
        known = {commit_of(folder): folder for folder in known}
        folder = self.server.models[name].get(start) or known.get(start)
        if folder is None:
            return self._send(404, code="RevisionNotFound")
        self.server.commit(name, branch, folder)
        self._send_value({})

    def _send_modes(self, folder, files):
        known = {each["path"]: each for each in files_of(folder)}
        modes = []
        for path in (file["path"] for file in files):
            mode = "lfs" if path.endswith(_LARGE) else "regular"
            mode = {"path": path, "uploadMode": mode, "shouldIgnore": False}
            modes.append({**mode, "oid": oid_of(known.get(path))})
        self._send_value({"files": modes})

    def _send_actions(self, objects):
        found = []
        for each in objects:
            upload = {"href": f"{self.server.address}/objects/{each['oid']}"}
            missing = each["oid"] not in self.server.objects
            actions = {"actions": {"upload": upload}} if missing else {}
            found.append({**each, **actions})
        self._send_value({"transfer": "basic", "objects": found})

    def _commit(self, name, revision, folder, lines):
        with tempfile.TemporaryDirectory() as place:
            new = Path(place) / "new"
            shutil.copytree(folder, new)
            for line in lines:
                value = line["value"]
                if line["key"] == "header":
                    continue
                path = new / value["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                if line["key"] == "file":
                    path.write_bytes(base64.b64decode(value["content"]))
                elif value["oid"] in self.server.objects:
                    path.write_bytes(self.server.objects[value["oid"]])
                else:
                    return self._send(400)
            commit = self.server.commit(name, revision, new)
        url = f"{self.server.address}/{name}/commit/{commit}"
        self._send_value({"commitUrl": url, "commitOid": commit})

    def _send_file(self, folder, path):
        if not path.is_file():
            return self._send(404, code="EntryNotFound")
        content = path.read_bytes()
        etag = oid_of(describe_file(folder, path))
        content = self.server.spoil(path.name, content)
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
        if self.command != "HEAD":
            if "ETag" in headers and 0 < self.server.cut < len(content):
                content, self.server.cut = content[: self.server.cut], 0
                self.close_connection = True
            with contextlib.suppress(OSError):
                self.wfile.write(content)
