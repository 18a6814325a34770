"""The text of a file in DIAL, for programs that want nothing else."""

import logging

from task.documents.pool import ReaderPool
from task.errors import ToolError

logger = logging.getLogger(__name__)

MAX_SIZE = 10 * 2**20


class DialFileContentExtractor:
    """Reads files of one DIAL Core with one key. Source: API reference, DialFileContentExtractor."""

    def __init__(self, endpoint: str, api_key: str) -> None:
        self._endpoint = endpoint
        self._api_key = api_key

    async def extract_text(self, file_url: str, max_size: int | None = None) -> str:
        """The file's text, tables as Markdown; an empty string, and a line in the log, when it cannot be had.

        A file of more than `max_size` bytes (10 MiB by default) is not read.
        """
        from aidial_client import AsyncDial

        limit, content, readers = MAX_SIZE if max_size is None else max_size, bytearray(), ReaderPool()
        try:
            async with (
                AsyncDial(base_url=self._endpoint, api_key=self._api_key) as client,
                client.files.stream_download(file_url) as answer,
            ):
                async for chunk in answer:
                    content += chunk
                    if len(content) > limit:
                        raise ToolError(f"the file is larger than {limit:,} bytes")
            return (await readers.extraction(answer.filename, bytes(content), answer.content_type)).text
        except Exception as error:  # those of the HTTP client may carry the answer's text
            logger.warning("no text extracted: %s", error if isinstance(error, ToolError) else type(error).__name__)
            return ""
        finally:
            await readers.close()
