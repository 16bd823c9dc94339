"""The last parity record of a branch, out of the artifacts that bench.yml has kept on GitHub."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gate.results import RECORD
from pytest_llmbench.errors import UsageError

if TYPE_CHECKING:
    import httpx

ARTIFACT: Final = "parity-"
"""How bench.yml's artifacts begin."""
A_PAGE: Final = 100
MOST_PAGES: Final = 10
MOST_BYTES: Final = 64 * 1024**2
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A record that a run of the branch has kept."""

    content: bytes
    commit: str
    created: str


def last_record(environ: Mapping[str, str], branch: str) -> Kept | None:
    """The newest that a run of `branch` itself has left; None where there is none any more.

    Needs the variables that GitHub gives a job, and its token with `actions: read`. UsageError where GitHub refuses.
    """
    import httpx

    token = _need("GITHUB_TOKEN", environ.get("GITHUB_TOKEN"))
    repository = _need("GITHUB_REPOSITORY", environ.get("GITHUB_REPOSITORY"))
    url = f"{environ.get('GITHUB_API_URL') or 'https://api.github.com'}/repos/{repository}/actions/artifacts"
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    try:
        # Behind the redirect lies another host; httpx doesn't take the token there.
        with httpx.Client(headers=headers, follow_redirects=True, timeout=PATIENCE_S) as client:
            for artifact in _artifacts(client, url):
                if _is_of(artifact, branch) and (content := _record(client, artifact)) is not None:
                    commit = str(artifact["workflow_run"]["head_sha"])
                    return Kept(content=content, commit=commit, created=str(artifact["created_at"]))
    except (httpx.HTTPError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(f"{url} can't be read: {error}; does the job have the permission actions: read?") from error
    return None


def _need(name: str, value: str | None) -> str:
    if value:
        return value
    raise UsageError(f"{name} isn't set: this runs in a job of GitHub's, with its token in GITHUB_TOKEN")


def _artifacts(client: httpx.Client, url: str) -> Iterator[Mapping[str, Any]]:
    """The newest first, as GitHub lists them."""
    for page in range(1, MOST_PAGES + 1):
        found = client.get(url, params={"per_page": A_PAGE, "page": page}).raise_for_status().json()["artifacts"]
        yield from found
        if len(found) < A_PAGE:
            return


def _is_of(artifact: Mapping[str, Any], branch: str) -> bool:
    if (run := artifact["workflow_run"]) is None:  # a run that was deleted
        return False
    # A fork's branch may have the same name.
    own = run["head_branch"] == branch and run["head_repository_id"] == run["repository_id"]
    return own and not artifact["expired"] and str(artifact["name"]).startswith(ARTIFACT)


def _record(client: httpx.Client, artifact: Mapping[str, Any]) -> bytes | None:
    """None where the run has measured nothing."""
    answer = client.get(str(artifact["archive_download_url"])).raise_for_status()
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        there = [info for info in archive.infolist() if info.filename == RECORD and info.file_size <= MOST_BYTES]
        return archive.read(there[0]) if there else None
