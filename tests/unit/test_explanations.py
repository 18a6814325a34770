"""What a person reads when a model's provider refuses or fails."""

import json

import pytest

from task.errors import ProviderError
from task.llm.failures import CORE, explained, http_failure, spent_limit

NONE = 2**63 - 1  # what Core writes where there is no limit


def core_answers(message: str, wait: int | None) -> ProviderError:
    body = json.dumps({"error": {"message": message, "code": "429"}}).encode()
    error = http_failure(429, body, {} if wait is None else {"Retry-After": str(wait)}, ())
    error.server = CORE
    return error


def tokens(minute: str, day: str, week: str = f"58 / {NONE}", month: str = f"58 / {NONE}") -> str:
    windows = {"Minute": minute, "Day": day, "Week": week, "Month": month}
    return " ".join(["Hit token rate limit.", *(f"{name} limit: {used} tokens." for name, used in windows.items())])


@pytest.mark.fault(
    "model: a person's token or request limit at DIAL Core is spent, at a door, in a tool, or without its time"
)
@pytest.mark.parametrize(
    ("message", "wait", "spent", "opens"),
    [
        (tokens("58 / 50", "58 / 10000"), 44, "58 of 50 tokens in the last minute", "in 44 seconds"),
        (tokens("0 / 50", "10000 / 10000"), 5_400, "10,000 of 10,000 tokens in the last day", "in 90 minutes"),
        (tokens("0 / 50", "5 / 9", "58 / 40"), 172_800, "58 of 40 tokens in the last week", "in 2 days"),
        (tokens("0 / 50", "5 / 9", "9 / 40", "70 / 60"), 1_728_000, "70 of 60 tokens in the last month", "in 20 days"),
        (tokens("58 / 50", "58 / 40"), 7_200,
         "58 of 50 tokens in the last minute and 58 of 40 tokens in the last day", "in 2 hours"),
        (f"Hit request rate limit. Hour limit: 3 / 3 requests. Day limit: 3 / {NONE} requests.", 600,
         "3 of 3 requests in the last hour", "in 10 minutes"),
    ],
    ids=["minute", "day", "week", "month", "two", "requests"],
)  # fmt: skip
def test_a_spent_limit_of_a_person_is_named_with_what_is_used_and_when_it_opens(
    message: str, wait: int, spent: str, opens: str
) -> None:
    sentence = explained(core_answers(message, wait), "gpt-4o")
    assert sentence == f"Your limit for the model gpt-4o is used up: {spent}. It opens again {opens}."


@pytest.mark.fault("model: a 429 that names no spent limit")
@pytest.mark.parametrize(
    "message",
    [
        "Slow down",
        "",
        tokens(f"58 / {NONE}", f"58 / {NONE}"),
        tokens("5 / 50", "5 / 50"),
        "Minute limit: x / y tokens.",
    ],
)
def test_a_429_that_names_no_spent_limit_is_a_busy_model(message: str) -> None:
    error = core_answers(message, 7)
    assert spent_limit(error, "gpt-4o") is None
    assert explained(error, "gpt-4o") == "The model gpt-4o is busy or over its limit. Try again in 7 seconds."


NOT_FOUND = {
    "the model": ({"error": {"message": "The model `gpt-9` does not exist", "code": "model_not_found"}}, "no model"),
    "Ollama's model": ({"error": {"message": "model 'gpt-9' not found", "type": "not_found_error"}}, "no model"),
    "Core's model": ("Unknown application: gpt-9", "no model"),
    "a web server's page": ("<html><h1>404 Not Found</h1></html>", "has no chat at its address"),
    "a path": ({"detail": "Not Found"}, "has no chat at its address"),
    "OpenAI's path": ({"error": {"message": "Invalid URL (POST /chat/completions)"}}, "has no chat at its address"),
}


@pytest.mark.fault("model: a provider's address without /v1, or another path without a chat")
@pytest.mark.parametrize(("body", "words"), NOT_FOUND.values(), ids=NOT_FOUND)
def test_a_wrong_address_is_not_taken_for_a_missing_model(body: object, words: str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    assert words in explained(http_failure(404, content.encode(), {}, ()), "gpt-9")


CORE_REFUSES = {
    "key": (401, "Unknown api key", "DIAL Core does not know the key of this request."),
    "file": (403, "Access denied to the file files/b/x.csv", "does not let this request read one of its files"),
    "role": (403, "Forbidden deployment: gpt-4o", "You may not use the model gpt-4o."),
    "no limit": (403, '{"error":{"message":"Access denied","code":"403"}}', "You may not use the model gpt-4o."),
    "provider": (401, '{"error":{"message":"Incorrect API key"}}', "The model gpt-4o refused the key."),
}


@pytest.mark.fault("model: a caller, a role or a file that DIAL Core refuses")
@pytest.mark.parametrize(("status", "body", "words"), CORE_REFUSES.values(), ids=CORE_REFUSES)
def test_a_refusal_of_core_itself_is_not_blamed_on_the_models_key(status: int, body: str, words: str) -> None:
    error = http_failure(status, body.encode(), {}, ())
    error.server = CORE
    assert words in explained(error, "gpt-4o")


@pytest.mark.fault("model: an account without credit")
def test_an_account_without_credit_is_not_a_busy_model() -> None:
    body = json.dumps({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}).encode()
    assert "has used up its quota" in explained(http_failure(429, body, {}, ()), "gpt-4o")
