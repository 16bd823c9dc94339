"""ci/compare_base against a server that answers as GitHub's API is documented to."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gate_kit import RECORD_FILE, ROOT, clean_environment

TOKEN = "ghs_of-this-job"
REPOSITORY = 1


def artifact(number: int, **changes: Any) -> dict[str, Any]:
    """One of `GET /repos/OWNER/REPO/actions/artifacts`, of a run of main."""
    run = {"head_branch": "main", "head_sha": f"{number}" * 40, "repository_id": REPOSITORY, "head_repository_id": 1}
    found = {"id": number, "name": f"parity-{number}-1", "expired": False, "created_at": "2026-01-02T03:04:05Z"}
    return {**found, "workflow_run": run | changes.pop("run", {}), **changes}


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_", "."), content)
    return out.getvalue()


def record(share: float) -> bytes:
    """The M4 Pro record, its first model's candidate decoding at `share` of its speed."""
    data = json.loads(RECORD_FILE.read_text(encoding="utf-8"))
    for point in data["models"][0]["decode"]:
        side = point["tok_s"]["nuvec"]
        side["samples"], side["median"] = [share * value for value in side["samples"]], share * side["median"]
    return json.dumps(data).encode()


class GitHub:
    """Artifacts, their archives, and the store to which GitHub redirects, on another host."""

    def __init__(self) -> None:
        self.artifacts: list[dict[str, Any]] = []
        self.archives: dict[int, bytes] = {}
        self.tokens: list[tuple[str, str | None]] = []
        github = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                github.tokens.append((path.split("/")[1], self.headers["Authorization"]))
                status, place, body = github.answer(path)
                self.send_response(status)
                if place:
                    self.send_header("Location", place)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing on standard error."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str) -> tuple[int, str, bytes]:
        number = int(path.rpartition("/")[2]) if path[-1].isdecimal() else 0
        if path.startswith("/store/"):
            return 200, "", self.archives[number]
        if path.startswith("/zip/"):
            return 302, f"http://localhost:{self.server.server_port}/store/{number}", b""
        if path == "/repos/o/r/actions/artifacts":
            listed = [{**one, "archive_download_url": f"{self.url}/zip/{one['id']}"} for one in self.artifacts]
            return 200, "", json.dumps({"artifacts": listed}).encode()
        return 404, "", b"{}"

    def keep(self, number: int, archive: bytes, **changes: Any) -> None:
        self.artifacts.append(artifact(number, **changes))
        self.archives[number] = archive


@pytest.fixture
def github() -> Iterator[GitHub]:
    found = GitHub()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def compare(github: GitHub, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {"GITHUB_API_URL": github.url, "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": TOKEN, "GITHUB_BASE_REF": "main"}
    summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    command = [sys.executable, str(ROOT / "ci" / "compare_base"), str(RECORD_FILE)]
    environment = clean_environment(**given | summary | variables)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_what_got_worse_since_the_last_record_is_told(github: GitHub, tmp_path: Path) -> None:
    github.keep(1, zipped(parity_json=record(2.0), junit_xml=b""))
    done = compare(github, tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(
        "::warning title=Parity gate::Against main at 111111111111 (2026-01-02T03:04:05Z): 3 reg"
    )
    page = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "## Against main" in page
    assert "`Qwen3-0.6B-4bit-decode-r1` | tok&#95;s&#95;ratio" in page


def test_the_token_stays_with_the_api(github: GitHub, tmp_path: Path) -> None:
    github.keep(1, zipped(parity_json=record(1.0)))
    assert compare(github, tmp_path).returncode == 0
    assert github.tokens == [("repos", f"Bearer {TOKEN}"), ("zip", f"Bearer {TOKEN}"), ("store", None)]


def test_only_the_branchs_own_newest_record_counts(github: GitHub, tmp_path: Path) -> None:
    slower = zipped(parity_json=record(2.0))
    github.keep(1, slower, run={"head_branch": "topic"})
    github.keep(2, slower, run={"head_repository_id": 7})
    github.keep(3, slower, expired=True)
    github.keep(4, slower, name="demo-macos")
    github.keep(5, zipped(junit_xml=b""))
    github.keep(6, zipped(parity_json=record(1.0)))
    github.keep(7, slower)
    github.keep(8, slower)
    github.artifacts[-1]["workflow_run"] = None  # as of a run that was deleted
    done = compare(github, tmp_path)
    assert (done.returncode, "at 666666666666" in done.stdout) == (0, True), done.stdout + done.stderr


def test_before_the_first_record_there_is_nothing_to_compare_with(github: GitHub, tmp_path: Path) -> None:
    done = compare(github, tmp_path)
    assert (done.returncode, done.stdout) == (
        0,
        "::notice title=Parity gate::no record of main is kept yet: nothing to compare with\n",
    )


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"GITHUB_REPOSITORY": "o/other"}, "404 Not Found.*actions: read"),
        ({"GITHUB_TOKEN": ""}, "GITHUB_TOKEN isn't set"),
        ({"GITHUB_BASE_REF": ""}, "name it with --branch"),
    ],
)
def test_what_is_missing_is_said(github: GitHub, tmp_path: Path, variables: dict[str, str], says: str) -> None:
    done = compare(github, tmp_path, **variables)
    assert done.returncode == 2
    assert re.search(says, done.stderr, re.DOTALL), done.stderr
