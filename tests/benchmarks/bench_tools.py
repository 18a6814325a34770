"""What `find_tools` costs and finds among 20, 100 and 500 tools of invented servers, by words and also by meaning.

The requests were written before the ranking was tuned; those `held out` tuned nothing, and are in users' own words. By
words a search is measured in CPU; with meaning in time, for most of it passes in the embedding process.
"""

import statistics
from pathlib import Path
from time import perf_counter, process_time

from task.embedding.client import Embedder
from task.llm.window import schema_tokens
from task.tools.base import BaseTool
from task.tools.find_tools import FindTools, ToolSearch, best
from tests.benchmarks.figures import Figure, measure_and_report, quiet_machine
from tests.support.many_tools import requests, tools
from tests.support.waiting import until

COUNTS = (20, 100, 500)


async def found(
    offered: list[BaseTool], file: str, search: ToolSearch, seconds: list[float], tokens: list[float]
) -> float:
    """The percentage of the requests with the right tool in the first five; appends time and tokens of each search."""
    names, finder, hits = {tool.name for tool in offered}, FindTools(offered, search), list[bool]()
    for text, right in requests(file):
        start, cpu = perf_counter(), process_time()
        cosines = await search.cosines(offered, text)
        five = best(offered, text, cosines)
        seconds.append(process_time() - cpu if cosines is None else perf_counter() - start)
        if right & names:
            hits.append(any(tool.name in right for tool in five))
        tokens.append(schema_tokens([finder.schema, *(tool.schema for tool in five)]))
    return 100 * statistics.mean(hits)


async def measured(folder: Path) -> list[Figure]:
    embedder, figures = Embedder(folder), list[Figure]()
    await embedder.embed(["starts the process"])
    by_words, both = ToolSearch(), ToolSearch(embed=embedder.embed_if_running)
    for count in COUNTS:
        offered, last = tools(count), count == COUNTS[-1]
        whole = schema_tokens([tool.schema for tool in offered])
        best(offered, "makes the index")

        async def read(offered: list[BaseTool] = offered) -> bool:
            return await both.cosines(offered, "makes the vectors") is not None

        await until(read, seconds=60)
        for search, how, unit, goal in ((by_words, "by words", "CPU", 5), (both, "and meaning", "time", 15)):
            seconds, tokens = list[float](), list[float]()
            among = f"among {count} tools {how}"
            shares = [await found(offered, file, search, seconds, tokens) for file in ("requests.tsv", "held_out.tsv")]
            quiet = unit == "CPU" or quiet_machine()
            figures += [
                Figure(f"right tool in the first five {among}", shares[0], "%", 95, at_least=True),
                Figure(f"the same, held out, {among}", shares[1], "%"),
                Figure(f"a search {among}, {unit}", statistics.median(seconds) * 1e3, "ms", goal, judged=quiet),
            ]
        share = 100 * statistics.mean(tokens) / whole
        figures.append(Figure(f"tokens of all among {count} tools", share, "%", 10 if last else None))
    await embedder.close()
    return figures


if __name__ == "__main__":
    measure_and_report(measured)
