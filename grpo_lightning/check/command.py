"""``check`` on the command line: ``fit``'s options, a run built as for ``fit``, and a page in the place of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from grpo_lightning.check.mending import build_past_mistakes, set_back, without_option
from grpo_lightning.check.page import Page
from grpo_lightning.check.run import RunCheck
from grpo_lightning.cli import GRPOCommandLine
from grpo_lightning.cli_parser import OneLineParser
from grpo_lightning.errors import UserError

COMMAND = "check"
SUMMARY = "Look at all that fit would meet before its first rollout; exit code 2 if it would not start."

REPORT, REPORT_SUMMARY = "report", "Write one HTML page about one run, or several side by side."
CLASS_OPTIONS = (
    "The options of a class are listed by its name: {command} --model.help grpo_lightning.GRPOModule, "
    "{command} --rollout.engine.help grpo_lightning.engines.VLLMEngine."
)


class CommandLine(GRPOCommandLine):
    """``GRPOCommandLine`` with ``check`` beside ``fit``.

    After parsing, the command is ``fit``, so that all is built as for a run. A mistake on the way is kept, its option
    set to its default, and parsing and building go on.
    """

    _page: Page | None = None
    """Of ``check``; None for the other commands."""
    _sampler_gap = True

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        super()._add_subcommands(parser, **kwargs)
        checks = self._prepare_subcommand_parser(self.trainer_class, "fit", description=SUMMARY)
        checks.add_argument(
            "--sampler_gap",
            type=bool,
            default=True,
            help="Load the policy, start the sampler and compare what they say of a few tokens; false saves the time.",
        )
        self._subcommand_parsers[COMMAND] = checks
        parser._subcommands_action.add_subcommand(COMMAND, checks, help=SUMMARY)
        for command in ("fit", COMMAND):
            self._subcommand_parsers[command].epilog = CLASS_OPTIONS.format(command=command)
        # Run without this parser, which takes long to build; here to be listed.
        parser._subcommands_action.add_subcommand(REPORT, OneLineParser(), help=REPORT_SUMMARY)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        words = sys.argv[1:] if args is None else args
        if words[:1] != [COMMAND]:
            super().parse_arguments(parser, args)
            for command, options in ((COMMAND, "--config ..."), (REPORT, "RUN_DIR ...")):
                if self.config["subcommand"] == command:
                    raise UserError(f"{command}: stands first; write `python -m grpo_lightning {command} {options}`")
            return
        self._page = Page()
        self._parse_past_mistakes(list(words))
        options = self.config.pop(COMMAND)
        self._sampler_gap = options.pop("sampler_gap")
        self.config["subcommand"], self.config["fit"] = "fit", options

    def _parse_past_mistakes(self, words: list[str]) -> None:
        assert self._page is not None
        checks = self._subcommand_parsers[COMMAND]
        checks.tells = self.parser.tells = False

        def parse() -> None:
            self.config = self.parser.parse_args(words)

        def leave_out(option: str) -> bool:
            words[:] = without_option(words, option)
            checks.left_out.add(option)
            return option != "config"

        with self._page.kept():
            built = build_past_mistakes(parse, leave_out, self._page)
        if not built:
            self._end()

    def _parse_ckpt_path(self) -> None:
        self._go_on(super()._parse_ckpt_path)

    def before_instantiate_classes(self) -> None:
        self._go_on(super().before_instantiate_classes)

    def instantiate_classes(self) -> None:
        self._go_on(super().instantiate_classes)

    def _go_on(self, build: Callable[[], None]) -> None:
        if self._page is None:
            build()
            return
        options, defaults = self.config["fit"], self._parser("fit").get_defaults()
        with self._page.kept():
            built = build_past_mistakes(build, lambda option: set_back(options, option, defaults), self._page)
        if not built:
            self._end()

    def _run_subcommand(self, subcommand: str) -> None:
        if self._page is None:
            super()._run_subcommand(subcommand)
            return
        self._go_on(self._find_last_checkpoint)
        begins_with = self.config["fit"]["ckpt_path"]
        with self._page.kept():
            self._page.attempt(self._tell_of_checkpoint)
            run = RunCheck(self.trainer, self.model, self.datamodule, page=self._page, checkpoint=begins_with)
            run.go_through(sampler_gap=self._sampler_gap)
        self._end()

    def _end(self) -> None:
        """The verdict.

        Raises:
            SystemExit: with code 2 if there are mistakes.
        """
        assert self._page is not None
        self._page.close()
        if self._page.mistakes:
            raise SystemExit(2)
