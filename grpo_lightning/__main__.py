"""``python -m grpo_lightning``: the command line, with one clear line instead of a traceback for a user's mistake."""

from __future__ import annotations

import logging
import os
import sys
import warnings


def main(args: list[str] | None = None) -> None:
    """Run the command line; exit code 2 for a user's mistake, 1 for a run that had to stop."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("grpo_lightning").setLevel(logging.INFO)
    _silence_what_we_chose()
    from grpo_lightning.errors import RunStopped, UserError

    try:
        from grpo_lightning.cli import GRPOCommandLine

        GRPOCommandLine(args)
    except (UserError, RunStopped) as error:
        print(f"{'error' if isinstance(error, UserError) else 'stopped'}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)


def _silence_what_we_chose() -> None:
    """Warnings of Lightning about choices that are deliberate here."""
    for message in (
        ".*does not have many workers.*",  # prompts are token lists in memory
        ".*exists and is not empty.*",  # the run folder is prepared by RunFolderCallback
        ".*The number of training batches.*log_every_n_steps.*",
        ".*`training_step` returned `None`.*",
    ):
        warnings.filterwarnings("ignore", message=message)


if __name__ == "__main__":
    main()
