"""The page: what is logged is on it, nothing is said twice, and mistakes stand at its end."""

from __future__ import annotations

import logging

import pytest
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from grpo_lightning.check.page import Page
from grpo_lightning.errors import RunStopped, UserError


def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    page, log = Page(), logging.getLogger("grpo_lightning.some.part")

    def fail(error: Exception) -> None:
        raise error

    with page.section("First"):
        page.say("as it is")
        page.say("as it is")
        log.info("%d prompts", 3)
        log.warning("odd")
        page.show("a\nb")
        assert page.attempt(lambda: 7) == 7
        assert page.attempt(lambda: fail(UserError("--a 1: no"))) is None
        page.attempt(lambda: fail(UserError("--a 1: no")))
        page.attempt(lambda: fail(RunStopped("the sampler is broken")))
        page.attempt(lambda: fail(MisconfigurationException("two\n lines")))
    log.info("after it")
    page.close()
    assert capsys.readouterr().out == (
        "\nFirst\n-----\n  as it is\n  3 prompts\n  ! odd\n  a\n  b\n"
        + "  ERROR, told at the end of the page\n" * 3
        + "\n3 mistakes found.\nerror: --a 1: no\nerror: the sampler is broken\nerror: --trainer: two lines\n"
    )


def test_an_unexpected_error_comes_after_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page()
    page.note("--a 1: no")
    with pytest.raises(ZeroDivisionError), page.kept():
        1 / 0  # noqa: B018
    assert capsys.readouterr().out.endswith("\n1 mistake found before an error ended the check.\nerror: --a 1: no\n")


def test_a_long_sentence_is_broken_on_the_page_and_a_mistake_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page()
    page.say("word " * 40)
    page.note("--option " + "word " * 40 + "end")
    page.close()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 110
    assert lines[-2:] == ["1 mistake found.", "error: --option " + "word " * 40 + "end"]


def test_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    Page().close()
    assert capsys.readouterr().out == "\nNo mistake found.\n"
