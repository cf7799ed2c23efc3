"""Secrets are left out, and nothing else is."""

from __future__ import annotations

import time

import pytest

from grpo_lightning.redaction import is_secret, redacted_command, redacted_text, redacted_yaml


@pytest.mark.parametrize(
    "name", ["key", "--a.API_KEY", "hfToken", "wandb-secret", "db.password", "a_secret_access_key"]
)
def test_whole_words_in_any_case_say_that_a_value_is_secret(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["micro_batch_tokens", "--rollout.keys", "monkey", "tokenizer", "max_tokens"])
def test_parts_of_words_do_not(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("--a.key x --b y", "--a.key *** --b y"),
        ("--a.key=x=y z", "--a.key=*** z"),
        ("--a.key --b y", "--a.key --b y"),
        ("--a.token null --token_gradient=false", "--a.token null --token_gradient=false"),
        ("--a.logger={url:https://me:pw@host/p,token:x}", "--a.logger={url:https://***@host/p,token:***}"),
        ("--micro_batch_tokens 8 --mail me@host", "--micro_batch_tokens 8 --mail me@host"),
    ],
)
def test_a_command(words: str, left: str) -> None:
    assert redacted_command(words.split()) == left.split()


def test_a_mapping_inside_a_value() -> None:
    text = '{"class_path": "Logger", "init_args": {"api_key": "x y, z", "name": "n"}}'
    assert redacted_text(text) == text.replace('"x y, z"', "***")


def test_a_configuration() -> None:
    text = "# mine\na: {rate: 1.0e-05}\nmicro_batch_tokens: 7\npad_token: null\n"
    assert redacted_yaml(text) == text
    secret = text + "logger:\n- init_args:\n    password: |\n      two\n      lines\n    tokens: 3\n    key: [a, b]\n"
    found = redacted_yaml(secret)
    assert found.endswith("logger:\n- init_args:\n    password: '***'\n    tokens: 3\n    key: '***'\n")
    assert redacted_yaml("a: [\napi_key: hush\n") == "a: [\napi_key: ***\n"
    assert redacted_yaml("url: http://me:hush@host\n") == "url: http://***@host\n"


def test_long_texts_take_no_long_time() -> None:
    start = time.monotonic()
    for text in ("a" * 200_000, "key " * 50_000, "://" * 50_000, "a: [" + "key: " * 20_000, "A" * 200_000 + ":"):
        redacted_yaml("[" + text)
    aliases = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{{k: *a{i - 1}}}, {{k: *a{i - 1}}}]\n" for i in range(1, 30))
    redacted_yaml(aliases + "key: hush\n")
    assert time.monotonic() - start < 10
