"""Uploaded files: how each wire format sends them, and how a resume finds them."""

import base64
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai.messages import VideoUrl

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.config import uploads
from nb_agents.config.uploads import UploadSpec
from tests.kit.sessions import TurnPaths
from tests.kit.teams import report_on
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.models.test_settings import ask, body_of, team_of
from tests.team_kit import WAIT_S

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DONE = Reply(tool_calls=(ToolCall("new_answer", {"content": "a dot"}),))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "dot.png"
    path.write_bytes(PICTURE)
    return path


@pytest.mark.parametrize("kind", ["openai", "openai responses", "claude", "gemini"])
def test_first_request_contains_image_and_text_uploads(
    kind: str, picture: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.py").write_text("answer = 42")
    files = [{"image_path": str(picture)}, {"file_path": str(tmp_path / "notes.py")}]
    with ModelServer(DONE, strict=True) as server:
        anyio.run(ask, team_of(kind, server, upload_files=files))
    sent = json.dumps(server.requests[0].body)
    assert base64.b64encode(PICTURE).decode()[:60] in sent  # Google uses another base64 alphabet
    assert "File notes.py:\\nanswer = 42" in sent


def test_unaccepted_upload_is_reported_and_not_sent(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"0")
    files = [{"video_path": str(tmp_path / "clip.mp4")}]
    with ModelServer(DONE, strict=True) as server:
        team = team_of("claude", server, upload_files=files)
        anyio.run(ask, team)
    assert "Not sent to ann: clip.mp4; claude accepts no video" in report_on(team).lines
    assert "clip.mp4" not in json.dumps(server.requests[0].body)


CAT, PAPER, NOTES = (f"https://files.example/{n}?v=1" for n in ("cat", "paper.pdf", "notes.md"))
BY_ADDRESS = [{"image_path": CAT}, {"file_path": PAPER}, {"file_path": NOTES}]


@pytest.mark.parametrize(
    "kind, sent",
    [
        ("openai", [{"type": "image_url", "image_url": {"url": CAT}}]),
        (
            "openai responses",
            [
                {"type": "input_image", "image_url": CAT, "detail": "auto"},
                {"type": "input_file", "file_url": PAPER},
                {"type": "input_file", "file_url": NOTES},
            ],
        ),
        (
            "claude",
            [
                {"type": "image", "source": {"type": "url", "url": CAT}},
                {"type": "document", "source": {"type": "url", "url": PAPER}},
            ],
        ),
        ("gemini", []),
    ],
)
def test_url_upload_is_passed_to_the_provider_and_never_fetched(
    kind: str, sent: list[dict[str, Any]]
) -> None:
    with ModelServer(DONE, strict=True) as server:
        team = team_of(kind, server, upload_files=BY_ADDRESS)
        anyio.run(ask, team)
    body = json.dumps(server.requests[0].body)
    found = [part for part in _parts(server.requests[0].body) if "files.example" in str(part)]
    bare = [{k: v for k, v in part.items() if k != "cache_control"} for part in found]
    assert bare == sent
    told = [line for line in report_on(team).lines if line.startswith("Not sent")]
    assert len(told) == len(BY_ADDRESS) - len(sent)
    assert all("by its address" in line for line in told)
    assert body.count("File paper.pdf:") == sum(PAPER in str(part) for part in sent)


TUBE, CLIP, SONG = (
    "https://www.youtube.com/watch?v=1",
    "https://files.example/clip.mp4",
    "https://files.example/song.mp3",
)
MEDIA = [{"file_path": TUBE}, {"video_path": CLIP}, {"audio_path": SONG}]


@pytest.mark.parametrize(
    "kind, sent",
    [
        ("openai", []),
        ("openai responses", []),
        ("claude", []),
        ("gemini", [{"fileData": {"file_uri": TUBE, "mime_type": "video/mp4"}}]),
        ("openrouter", []),  # at other addresses it only has OpenAI's protocol
    ],
)
def test_video_urls_are_passed_on_and_audio_urls_are_not(
    kind: str, sent: list[dict[str, Any]]
) -> None:
    with ModelServer(DONE, strict=True) as server:
        team = team_of(kind, server, upload_files=MEDIA)
        anyio.run(ask, team)
    body = server.requests[0].body
    assert [part for part in _parts(body) if "https://" in str(part)] == sent
    told = [line for line in report_on(team).lines if line.startswith("Not sent")]
    assert len(told) == len(MEDIA) - len(sent)
    assert f"Not sent to ann: song.mp3; {kind.split()[0]} accepts no audio by its address" in told


def test_gemini_accepts_only_youtube_video_urls() -> None:
    backend = {"type": "gemini", "model": "m", "api_key": "k", "upload_files": MEDIA}
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    told = "Not sent to ann: clip.mp4; gemini accepts no video by its address except YouTube's"
    assert told in report_on(team).lines


@pytest.mark.anyio
async def test_openrouter_gets_video_and_document_urls(
    tmp_path: Path,
) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"0")
    files = [*MEDIA, {"file_path": PAPER}, {"video_path": str(tmp_path / "clip.mp4")}]
    backend = {"type": "openrouter", "model": "google/gemini-3-pro", "api_key": "k"}
    parts = _parts(await body_of(**backend, upload_files=files))
    local = "data:video/mp4;base64,MA=="
    assert [p["video_url"]["url"] for p in parts if "video_url" in p] == [TUBE, CLIP, local]
    assert [p["file"]["file_data"] for p in parts if "file" in p] == [PAPER]
    agent = {"id": "ann", "backend": {**backend, "upload_files": files}}
    told = "Not sent to ann: song.mp3; openrouter accepts no audio by its address"
    assert told in report_on(TeamSpec.model_validate({"agents": [agent]})).lines
    assert "song.mp3" not in str(parts)


@pytest.mark.parametrize("host", ["youtu.be", "m.youtube.com", "music.youtube.com", "a.example"])
def test_youtube_hosts_match_pydantic_ai(host: str) -> None:
    url = f"https://{host}/watch?v=1"
    assert UploadSpec(video_path=url).is_youtube == VideoUrl(url).is_youtube


def test_openai_uses_the_responses_api_for_document_urls() -> None:
    backend = {"type": "openai", "model": "gpt-5", "upload_files": [{"file_path": PAPER}]}
    spec = TeamSpec.model_validate({"agents": [{"backend": backend}]}).agents[0].backend
    assert spec.wire_format == "openai responses" and len(spec.uploads) == 1


def _parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a request's messages."""
    messages = body.get("messages") or body.get("input") or body.get("contents") or []
    return [
        part
        for message in messages
        for part in (message.get("content") or message.get("parts") or [])
        if isinstance(part, dict)
    ]


@pytest.mark.parametrize("url", ["https://ann:pw@files.example/a.png", "https:///a.png"])
def test_url_with_a_password_or_without_a_host_is_an_error(url: str, tmp_path: Path) -> None:
    backend = {"type": "claude", "model": "m", "upload_files": [{"image_path": url}]}
    (tmp_path / "team.yaml").write_text(json.dumps({"agent": {"id": "a", "backend": backend}}))
    with pytest.raises(
        nb_agents.UserError, match="must have a host and must not contain a password"
    ) as told:
        TeamSpec.from_file(tmp_path / "team.yaml")
    assert "pw" not in str(told.value)


@pytest.mark.parametrize(
    "upload, why",
    [
        ({"image_path": "nowhere.png"}, "'nowhere.png' is not a file"),
        ({"file_path": "/"}, "is not a file"),
        ({"file_path": "a\0b"}, "is not a file"),
        ({"image_path": "big.png"}, r"has 70 bytes; the limit is 69"),
    ],
)
def test_unsendable_file_is_reported_before_the_start(
    upload: dict[str, str], why: str, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(picture.parent)
    monkeypatch.setattr(uploads, "MAX_BYTES", 69)
    picture.rename("big.png")
    backend = {"type": "claude", "model": "m", "api_key": "k", "upload_files": [upload]}
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    assert why in report_on(team).verdict
    with pytest.raises(nb_agents.UserError, match=why):
        nb_agents.start("What is it?", team)


def test_upload_has_exactly_one_key(tmp_path: Path) -> None:
    both: dict[str, Any] = {"image_path": "a.png", "file_path": "b.txt"}
    for upload in ({}, both):
        backend = {"type": "claude", "model": "m", "upload_files": [upload]}
        (tmp_path / "team.yaml").write_text(json.dumps({"agent": {"id": "a", "backend": backend}}))
        with pytest.raises(nb_agents.UserError, match="exactly one of `image_path`"):
            TeamSpec.from_file(tmp_path / "team.yaml")


def test_upload_path_is_relative_to_the_team_file_also_after_a_resume(
    picture: Path, tmp_path: Path
) -> None:
    options = RunOptions(session_root=tmp_path / "sessions")
    with ModelServer(DONE) as server:
        server.script("m", Reply("hm", hang_after=0), DONE)
        backend = {"type": "claude", "model": "m", "api_key": "k", "base_url": server.base}
        backend |= {"upload_files": [{"image_path": "dot.png"}]}
        file = tmp_path / "team.yaml"
        file.write_text(json.dumps({"agent": {"id": "ann", "backend": backend}}))
        run = nb_agents.start("What is it?", str(file), "s", options=options)
        wait_until(lambda: server.requests, WAIT_S)
        run.stop(True)
        run.wait(WAIT_S, raise_on_stop=False)
        assert nb_agents.resume("s", options=options).wait(WAIT_S) == "a dot"
    cut, again = server.requests
    assert cut.messages == again.messages
    assert base64.b64encode(PICTURE).decode() in json.dumps(again.messages)
    assert base64.b64encode(PICTURE)[:40] not in TurnPaths(run.path).journal.read_bytes()
