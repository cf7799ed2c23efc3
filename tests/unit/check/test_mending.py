"""Going on after a mistake: what is set back, and when there is nothing to go on with."""

from __future__ import annotations

from typing import Any

import pytest
from jsonargparse import Namespace

from grpo_lightning.check.mending import build_past_mistakes, set_back, without_option
from grpo_lightning.check.page import Page
from grpo_lightning.errors import UserError


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--a", "1", "--b", "2"], ["--b", "2"]),
        (["--b=2", "--a=1"], ["--b=2"]),
        (["--a", "--b", "2"], ["--b", "2"]),
        (["--b", "--a"], ["--b"]),
        (["--a.c=1", "--ab", "1"], ["--a.c=1", "--ab", "1"]),
    ],
)
def test_an_option_is_taken_off_the_command_line(words: list[str], left: list[str]) -> None:
    assert without_option(words, "a") == left


def config() -> Namespace:
    policy = {"policy": "x", "lr": -1.0}
    return Namespace(
        rollout=Namespace(temperature=0.0),
        model=Namespace(class_path="grpo_lightning.GRPOModule", init_args=Namespace(**policy)),
        ckpt_path="none",
    )


DEFAULTS = Namespace(rollout=Namespace(temperature=1.0), model=None, ckpt_path=None)


def test_a_default_is_the_parsers_or_that_of_the_class_which_is_named() -> None:
    given = config()
    assert set_back(given, "rollout.temperature", DEFAULTS)
    assert set_back(given, "model.lr", DEFAULTS)
    assert set_back(given, "ckpt_path", DEFAULTS)
    assert (given.rollout.temperature, given.model.init_args.lr, given.ckpt_path) == (1.0, None, None)


@pytest.mark.parametrize("option", ["model.policy", "model.nope", "rollout.nope", "nope.nope.nope", "trainer"])
def test_what_has_no_default_is_left(option: str) -> None:
    given = config()
    assert not set_back(given, option, DEFAULTS)
    assert given == config()


def building(*messages: str) -> Any:
    """Fails with each message in turn, then succeeds."""
    left = list(messages)

    def build() -> None:
        if left:
            try:
                raise UserError(left.pop(0))
            except UserError as error:
                raise ValueError("a constructor's") from error

    return build


def test_every_mistake_is_kept_and_its_option_set_back_once(capsys: pytest.CaptureFixture[str]) -> None:
    page, options = Page(), []

    def keep(option: str) -> bool:
        options.append(option)
        return True

    assert build_past_mistakes(building("--a.b 1: no", "--c: no"), keep, page)
    assert (page.mistakes, options) == (["--a.b 1: no", "--c: no"], ["a.b", "c"])
    assert not build_past_mistakes(building("--a.b 2: no"), keep, page)
    assert page.mistakes == ["--a.b 1: no", "--c: no"], "of what stands in for it, nothing is said"
    assert capsys.readouterr().out == 2 * "  ERROR, told at the end of the page\n"


@pytest.mark.parametrize("message", ["no option at all", "--a: no"])
def test_nothing_is_built_where_nothing_can_be_set_back(message: str) -> None:
    page = Page()
    assert not build_past_mistakes(building(message), lambda option: False, page)
    assert page.mistakes == [message]


def test_a_bug_is_no_mistake() -> None:
    def build() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        build_past_mistakes(build, lambda option: True, Page())
