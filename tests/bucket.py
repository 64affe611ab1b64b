"""A bucket of Google Cloud Storage on this machine: `python bucket.py PORT`.

gcp-storage-emulator, with what it lacks: the generations of objects, which TensorStore
relies on, and moves.
"""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http import HTTPStatus

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

NAME = "bucket"


@contextlib.contextmanager
def serving() -> Iterator[dict[str, str]]:
    """Serves an empty bucket; yields variables that send a program to it."""
    from joined import free_port

    port = free_port()
    command = [sys.executable, __file__, str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        while True:
            with contextlib.suppress(ConnectionError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert server.poll() is None
            time.sleep(0.1)
        url = f"http://127.0.0.1:{port}"
        yield {
            "STORAGE_EMULATOR_HOST": url,  # gcsfs
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # asks Google
            "NO_GCE_CHECK": "true",  # so does this
        }
        server.kill()


def _generation(request, storage, bucket: str, name: str) -> str:
    """The generation of an object; "0" if there is none."""
    try:
        return storage.get_file_obj(bucket, name)["generation"]
    except NotFound:
        return "0"


def _add_generations() -> None:
    """Has downloads tell an object's generation, and requests depend on it."""
    download, insert = objects.download, objects.insert

    def download_generation(request, response, storage, *args, **kwargs):
        place = request.params["bucket_name"], request.params["object_id"]
        now = _generation(request, storage, *place)
        if now in request.query.get("ifGenerationNotMatch", []):
            response.status = HTTPStatus.NOT_MODIFIED
            return
        response["x-goog-generation"] = now
        download(request, response, storage, *args, **kwargs)

    def insert_if(request, response, storage, *args, **kwargs):
        if wanted := request.query.get("ifGenerationMatch"):
            place = request.params["bucket_name"], request.query["name"][0]
            if _generation(request, storage, *place) not in wanted:
                response.status = HTTPStatus.PRECONDITION_FAILED
                return
        insert(request, response, storage, *args, **kwargs)

    objects.download, objects.insert = download_generation, insert_if


def _move(request, response, storage) -> None:
    """Gives an object another name."""
    bucket, name, to = (request.params[key] for key in ("bucket", "name", "to"))
    try:
        moved = {**storage.get_file_obj(bucket, name), "name": to}
        storage.create_file(bucket, to, storage.get_file(bucket, name), moved)
        storage.delete_file(bucket, name)
        response.json(moved)
    except NotFound:
        response.status = HTTPStatus.NOT_FOUND


if __name__ == "__main__":
    _add_generations()
    from gcp_storage_emulator import server

    move = r"^/storage/v1/b/(?P<bucket>[^/]+)/o/(?P<name>.+)/moveTo/o/(?P<to>.+)$"
    server.HANDLERS = ((move, {"POST": _move}), *server.HANDLERS)
    server.create_server("127.0.0.1", int(sys.argv[1]), True, NAME).run()
