"""``python -m grpo_lightning``: the command line, with one clear line instead of a traceback for a user's mistake."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import sys
import warnings

from grpo_lightning.processes import end_with_starter, fail, leave, rank, wait_for


def main(args: list[str] | None = None) -> None:
    """Run the command line; exit code 2 for a user's mistake, 1 for a run that had to stop, 143 and 130 for signals."""
    _require_packages()
    words = sys.argv[1:] if args is None else args
    if words[:1] == ["report"]:
        _report(words[1:])
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if hasattr(signal, "SIGUSR1"):  # for ``StopOnSignal``; before any thread starts, which inherit it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    end_with_starter()
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())  # `my_rewards.score` beside the run, for the installed command too
    _speak_plainly(logging.ERROR if rank() else logging.INFO)
    from grpo_lightning import interruption
    from grpo_lightning.check.command import CommandLine

    interruption.outlasts_run = args is None
    try:
        trainer = CommandLine(args).trainer
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        fail(error)
    code = wait_for(getattr(trainer.strategy.launcher, "procs", []))
    code = code or max((getattr(callback, "exit_code", 0) for callback in trainer.callbacks), default=0)
    if args is None and trainer.world_size > 1:  # a program that calls this may have more to do
        leave(code)
    if code:
        sys.exit(code)


def _require_packages() -> None:
    """The mistake of a first day: another Python than the one that everything was installed for."""
    if any(importlib.util.find_spec(package) is None for package in ("tqdm", "jsonargparse", "lightning", "torch")):
        print(
            f"error: grpo_lightning's packages are not installed in this Python ({sys.executable}); activate the "
            "environment: . .venv/bin/activate",
            file=sys.stderr,
        )
        sys.exit(2)


def _report(words: list[str]) -> None:
    """Without torch and Lightning, whose imports take several times as long as the page."""
    from grpo_lightning.errors import UserError
    from grpo_lightning.report.command import main as report

    try:
        report(words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


class _AboveTheBars(logging.Handler):
    """Prints a message above the progress bars that stand on the terminal, not into them."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm  # not at the top: the line about missing packages comes first

        with contextlib.suppress(OSError):  # a log on a full disk
            tqdm.write(self.format(record), file=sys.stderr)


def _speak_plainly(level: int) -> None:
    """Our own messages as bare lines on stderr; none of the libraries' remarks on what is deliberate here."""
    log = logging.getLogger("grpo_lightning")
    for handler in list(log.handlers):  # of an earlier call in this process, on a stderr that may be closed
        log.removeHandler(handler)
    log.addHandler(_AboveTheBars())
    log.setLevel(level)
    log.propagate = False
    if rank():
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # transformers' too; the first rank's are enough
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: not any(word in str(record.msg) for word in ("litlogger", "TPU available"))
    )
    for message in (
        ".*does not have many workers.*",  # prompts are token lists in memory
        ".*exists and is not empty.*",  # the run folder is prepared by RunFolderCallback
        ".*You have overridden `transfer_batch_to_device`.*",  # batches hold no tensors
        ".*LeafSpec.*is deprecated.*",
        ".*set_vital.*is deprecated.*",
        ".*recommended to use `self.log.*sync_dist=True.*",  # figures are reduced over ranks before they are logged
        "(?s)Using ModelCheckpoint with manual optimization.*",  # after a rollout's steps is where it belongs
        ".*module\\(s\\) in eval mode at the start of training.*",  # the reference
        ".*predict returned None.*",  # EvaluationCallback keeps what was predicted
    ):
        warnings.filterwarnings("ignore", message=message)


if __name__ == "__main__":
    main()
