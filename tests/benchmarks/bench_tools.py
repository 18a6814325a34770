"""What `find_tools` costs and finds among 20, 100 and 500 tools of invented servers.

The requests were written before the ranking was tuned; those `held out` tuned nothing, and are in users' own words.
"""

import statistics
from pathlib import Path
from time import process_time

from task.llm.window import schema_tokens
from task.tools.find_tools import FindTools, best
from tests.benchmarks.figures import Figure, measure_and_report
from tests.support.many_tools import requests, tools

COUNTS = (20, 100, 500)


def figures(count: int) -> list[Figure]:
    offered = tools(count)
    names, finder = {tool.name for tool in offered}, FindTools(offered)
    seconds, shares, tokens = list[float](), dict[str, float](), list[float]()
    whole = schema_tokens([tool.schema for tool in offered])
    best(offered, "the first search makes the index")
    for file in ("requests.tsv", "held_out.tsv"):
        hits = list[bool]()
        for text, right in requests(file):
            started = process_time()
            found = best(offered, text)
            seconds.append(process_time() - started)
            if right & names:
                hits.append(any(tool.name in right for tool in found))
            tokens.append(schema_tokens([finder.schema, *(tool.schema for tool in found)]) / whole)
        shares[file] = 100 * statistics.mean(hits)
    last = count == COUNTS[-1]
    among = f"among {count} tools"
    return [
        Figure(f"right tool in the first five {among}", shares["requests.tsv"], "%", 95, at_least=True),
        Figure(f"the same, held out, {among}", shares["held_out.tsv"], "%"),
        Figure(f"a search {among}, CPU", statistics.median(seconds) * 1e3, "ms", 5),
        Figure(f"tokens of all {among}", 100 * statistics.mean(tokens), "%", 10 if last else None),
    ]


async def measured(_: Path) -> list[Figure]:
    return [figure for count in COUNTS for figure in figures(count)]


if __name__ == "__main__":
    measure_and_report(measured)
