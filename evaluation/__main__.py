"""`python -m evaluation`: the figures of one half of the questions; those of the test half are never listed."""

import argparse
import asyncio
import re
from dataclasses import fields
from pathlib import Path

from evaluation.corpus import claims, claims_of, documents, half_of, questions
from evaluation.engines import engines, engines_report
from evaluation.html import html_report
from evaluation.judge import LIMIT
from evaluation.library import library_documents, library_questions, library_report, prepare_library
from evaluation.report import misses, report
from evaluation.run import all_modes, flags_of, prepare
from evaluation.tables import tables_report
from task.embedding.embedder import Embedder
from task.search.ranking import SearchOptions

_NUMBERS = fields(SearchOptions)


async def evaluate(arguments: argparse.Namespace) -> str:
    """The report on the requested half."""
    asked, texts = half_of(questions(), arguments.half), documents()
    without = library_questions(arguments.half)
    options = SearchOptions(**{option.name: getattr(arguments, option.name) for option in _NUMBERS})
    embedder = Embedder()
    try:
        corpus = await prepare(texts, asked, embedder, arguments.limit)
        library = await prepare_library(without, embedder)
    finally:
        await embedder.close()
    found, stated = all_modes(corpus, asked, options), claims_of(claims(), arguments.half)
    named = report(arguments.half, found, stated, flags_of(texts, stated))
    section = f"{named}\n\n{library_report(library, without, options)}"
    return f"{section}\n\n{misses(found['hybrid'])}\n" if arguments.misses else f"{section}\n"


async def compare_engines(arguments: argparse.Namespace) -> str:
    """The report on the engines for vectors."""
    asked, texts = library_questions(arguments.half), library_documents()
    embedder = Embedder()
    try:
        found = await engines(texts, asked, embedder, arguments.index_url)
    finally:
        await embedder.close()
    return f"{engines_report(found, len(asked), len(texts))}\n"


def with_section(page: str, name: str, section: str) -> str:
    """The page with the section of this name replaced, between its two markers."""
    marked = f"<!-- {name} -->\n{section}<!-- end of {name} -->"
    return re.sub(f"<!-- {name} -->.*<!-- end of {name} -->", lambda _: marked, page, flags=re.DOTALL)


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evaluation", description=__doc__)
    parser.add_argument("--half", choices=("development", "test"), default="development")
    parser.add_argument("--part", choices=("all", "reading", "searching", "engines"), default="all")
    parser.add_argument("--index-url", default="", help="of a PostgreSQL with pgvector, for the part `engines`")
    parser.add_argument("--misses", action="store_true", help="also list wrong answers; development half only")
    parser.add_argument("--write", type=Path, help="a Markdown page whose section of this half is replaced")
    parser.add_argument("--limit", type=float, default=LIMIT, help="of the scripted judge")
    for option in _NUMBERS:
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    arguments = parser.parse_args(given)
    if arguments.misses and arguments.half == "test":
        parser.error("the questions of the test half are not shown")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    sections: dict[str, str] = {}
    if arguments.part == "engines":
        sections[f"engines, {arguments.half}"] = asyncio.run(compare_engines(arguments))
    if arguments.part in ("all", "searching"):
        sections[arguments.half] = asyncio.run(evaluate(arguments))
    if arguments.part in ("all", "reading"):
        sections[f"web pages, {arguments.half}"] = f"{html_report(arguments.half)}\n"
        sections[f"tables, {arguments.half}"] = f"{tables_report(arguments.half)}\n"
    print("\n".join(sections.values()))
    if arguments.write:
        page = arguments.write.read_text(encoding="utf-8")
        for name, section in sections.items():
            page = with_section(page, name, section)
        arguments.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
