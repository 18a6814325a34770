"""Files of an answer are saved under their names."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from task.console.attachments import saved
from task.conversation.messages import Attachment
from task.core_client.files import UnpooledFiles
from task.errors import InvalidRequest


@pytest.mark.fault("console terminal: a file of an answer whose title leads out of its folder, or is taken")
async def test_files_are_saved_in_their_folder_whatever_their_title_says(tmp_path: Path) -> None:
    files, folder = UnpooledFiles("http://127.0.0.1:9"), tmp_path / "files"
    data = base64.b64encode(b"pixels").decode()
    chart = Attachment("application/vnd.plotly.v1+json", "Sales", data="{}")
    for attachment, name in (
        (Attachment("image/png", "../../evil\x1b[2J\u202e", data=data), "evil[2J.png"),
        (Attachment("image/png", "../../evil\x1b[2J\u202e", data=data), "evil[2J-2.png"),
        (chart, "Sales.json"),
    ):
        assert await saved(files, "", attachment, folder) == folder / name
    assert (folder / "evil[2J.png").read_bytes() == b"pixels"
    assert await saved(files, "", Attachment(None, "page", reference_url="https://e.example"), folder) is None
    (tmp_path / "taken").touch()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        await saved(files, "", chart, tmp_path / "taken")
