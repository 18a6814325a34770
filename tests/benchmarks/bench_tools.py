"""What `find_tools` costs and finds among 20, 100 and 500 tools of invented servers.

The requests were written before the ranking was tuned; those `held out` tuned nothing, and are in users' own words.
"""

import statistics
from pathlib import Path
from time import process_time

from task.llm.window import schema_tokens
from task.tools.base import BaseTool
from task.tools.find_tools import FindTools, best
from tests.benchmarks.figures import Figure, measure_and_report
from tests.support.many_tools import requests, tools

COUNTS = (20, 100, 500)


def found(offered: list[BaseTool], file: str, seconds: list[float], tokens: list[float]) -> float:
    """The percentage of the requests with the right tool in the first five; appends time and tokens of each search."""
    names, finder, hits = {tool.name for tool in offered}, FindTools(offered), list[bool]()
    for text, right in requests(file):
        start = process_time()
        five = best(offered, text)
        seconds.append(process_time() - start)
        if right & names:
            hits.append(any(tool.name in right for tool in five))
        tokens.append(schema_tokens([finder.schema, *(tool.schema for tool in five)]))
    return 100 * statistics.mean(hits)


async def measured(_: Path) -> list[Figure]:
    figures = list[Figure]()
    for count in COUNTS:
        offered, seconds, tokens = tools(count), list[float](), list[float]()
        best(offered, "makes the index")
        asked, held_out = [found(offered, file, seconds, tokens) for file in ("requests.tsv", "held_out.tsv")]
        share = 100 * statistics.mean(tokens) / schema_tokens([tool.schema for tool in offered])
        figures += [
            Figure(f"right tool in the first five among {count} tools", asked, "%", 95, at_least=True),
            Figure(f"the same, held out, among {count} tools", held_out, "%"),
            Figure(f"a search among {count} tools, CPU", statistics.median(seconds) * 1e3, "ms", 5),
            Figure(f"tokens of all among {count} tools", share, "%", 10 if count == COUNTS[-1] else None),
        ]
    return figures


if __name__ == "__main__":
    measure_and_report(measured)
