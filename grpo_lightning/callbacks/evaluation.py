"""Accuracy on held-out problems, in ``validate``, ``test`` and during ``fit``; answers in ``predict``."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning as L

from grpo_lightning import ranks
from grpo_lightning.callbacks.rollout import RolloutCallback, check_truncation
from grpo_lightning.callbacks.run_folder import exports
from grpo_lightning.callbacks.start_checks import trainer_state
from grpo_lightning.engines.base import Sampling
from grpo_lightning.errors import UserError
from grpo_lightning.evaluation import Tally, judge, wilson_interval
from grpo_lightning.files import Outlived
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.records import completion_record, write_records
from grpo_lightning.rewards.scoring.runner import RewardScorer
from grpo_lightning.rollout.drawing import decode
from grpo_lightning.types import Completion, PromptBatch

log = logging.getLogger(__name__)


class EvaluationCallback(L.Callback):
    """Generates with its own sampling settings and scores with each source's own correctness rule.

    Greedy answers give ``accuracy``; n samples give unbiased ``pass@k`` and ``maj@k``. Seeds are those of the problem,
    the same at every evaluation; nothing that training draws from is touched. A sanity check before training is the
    evaluation at step 0 if it goes through all batches (``--trainer.num_sanity_val_steps -1``); otherwise nothing of it
    is recorded.

    Args:
        greedy: one answer at temperature 0 for each problem.
        samples: sampled answers for each problem (n); 0 skips pass@k and maj@k.
        temperature: of the samples.
        top_p: nucleus share of the samples.
        top_k: tokens kept; 0 keeps all.
        min_p: least probability relative to the likeliest token.
        max_completion_length: in tokens; null takes that of the rollouts.
    """

    def __init__(
        self,
        *,
        greedy: bool = True,
        samples: int = 0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        max_completion_length: int | None = None,
    ) -> None:
        if samples < 0 or (samples == 0 and not greedy):
            raise UserError(f"--evaluation.samples {samples}: give at least 1, or leave --evaluation.greedy true")
        if samples and temperature <= 0:
            raise UserError(
                f"--evaluation.temperature {temperature}: samples need a positive one; greedy has its own pass"
            )
        check_truncation("--evaluation", top_p=top_p, top_k=top_k, min_p=min_p)
        if max_completion_length is not None and max_completion_length < 1:
            raise UserError(f"--evaluation.max_completion_length {max_completion_length}: must be at least 1")
        self.greedy, self.samples = greedy, samples
        self.temperature, self.top_p, self.top_k, self.min_p = temperature, top_p, top_k, min_p
        self.max_completion_length = max_completion_length
        self.predictions: list[dict[str, Any]] = []
        self._tallies: list[Tally] = []
        self._rules: list[RewardScorer] = []
        """Of the evaluation sources, in ``predict``."""
        self._scorer: RewardScorer | None = None
        self._rollout: RolloutCallback
        self._announced = False
        self._disk = Outlived("an evaluation cannot be written", consequence="its figures are in metrics.csv alone")

    def setup(self, trainer: L.Trainer, pl_module: PolicyModule, stage: str) -> None:
        self._rollout = next(c for c in trainer.callbacks if isinstance(c, RolloutCallback))
        if self.max_completion_length is None:
            self.max_completion_length = self._rollout.sampling.max_completion_length
        if self._rollout.will_evaluate(trainer):
            self._rollout.sampler.allow_length(
                trainer, pl_module, self.max_completion_length, flag="--evaluation.max_completion_length"
            )

    # --- validate and test -----------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self.announce()
        self._tallies = [
            Tally(source, greedy=self.greedy, samples=self.samples, device=pl_module.device)
            for source in trainer.datamodule.eval_sources
        ]

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: PolicyModule, batch: PromptBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        greedy, samples = self._generate(trainer, pl_module, batch)
        self._tallies[dataloader_idx].add(batch.prompts, greedy, samples, trainer_state=trainer_state(trainer))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self._finish(trainer, pl_module, "val")

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_start = on_validation_batch_start

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self._finish(trainer, pl_module, "test")

    def _finish(self, trainer: L.Trainer, pl_module: PolicyModule, stage: str) -> None:
        self._rollout.sampler.rest()
        if _checks_some_batches(trainer):
            return
        figures: dict[str, float] = {}
        right, problems = 0.0, 0.0
        for tally in self._tallies:
            summary, records = tally.result(), ranks.gather_objects(tally.records)
            figures |= {f"{stage}/{tally.source.name}/{key}": value for key, value in summary.items()}
            if summary["problems"]:
                right, problems = right + summary["problems"] * summary["accuracy"], problems + summary["problems"]
            if ranks.rank() == 0:
                self._write(trainer, pl_module, stage, tally.source.name, summary, records)
        figures[f"{stage}/accuracy"] = right / problems if problems else math.nan
        pl_module.log_figures(figures, bar=(f"{stage}/accuracy",))

    def _write(
        self,
        trainer: L.Trainer,
        pl_module: PolicyModule,
        stage: str,
        name: str,
        summary: dict[str, float],
        records: list[dict[str, Any]],
    ) -> None:
        """One source's figures and answers into the run folder and the log."""
        folder, command = Path(trainer.default_root_dir), str(trainer.state.fn.value)
        line = {"command": command, "policy": pl_module.policy_path, "checkpoint": trainer.ckpt_path}
        step = trainer.global_step if command == "fit" or not trainer.ckpt_path else self._rollout.loaded_step
        line |= {"stage": stage, "step": step, "source": name, **summary, **_intervals(summary)}
        # `validate` in the folder of a run must not overwrite what the run wrote at step 0.
        when = f"_step{trainer.global_step:06d}" if command == "fit" else ""
        records = sorted(records, key=lambda record: record["row"])  # as on one rank
        with self._disk() if command == "fit" else nullcontext():
            write_records(folder / "evaluations.jsonl", [line], append=True)
            write_records(folder / "samples" / f"{stage}_{name}{when}.jsonl", records)
        log.info("%s %s: accuracy %.1f%% of %d", stage, name, 100 * summary["accuracy"], summary["problems"])
        if "unreadable_golds" in summary:
            log.warning(
                "%s %s: %d problems are left out, since their gold answer cannot be read",
                stage, name, summary["unreadable_golds"],
            )  # fmt: skip

    # --- predict ---------------------------------------------------------------------------------------------------

    def on_predict_start(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self.announce()
        self.predictions = []
        self._rules = [RewardScorer([source.correctness]) for source in trainer.datamodule.eval_sources]
        self._scorer = self._rollout.make_scorer() if self._rollout.rewards else None

    def on_predict_batch_start(
        self, trainer: L.Trainer, pl_module: PolicyModule, batch: PromptBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        greedy, samples = self._generate(trainer, pl_module, batch)
        # Prompts that only fill up a rank's batch are answered by another rank.
        asked = [(p, [*g, *s]) for p, g, s in zip(batch.prompts, greedy, samples, strict=True) if p.valid]
        prompts, groups = [prompt for prompt, _ in asked], [group for _, group in asked]
        terms: dict[str, list[list[float]]] = {}
        verdicts: list[list[bool | None]] | None = None
        if asked and all("answer" in prompt.columns for prompt in prompts):
            state = trainer_state(trainer)
            verdicts = judge(self._rules[dataloader_idx], prompts, groups, trainer_state=state)
            if self._scorer is not None:
                terms = self._scorer.score(prompts, groups, trainer_state=state).terms
        for p, (prompt, group) in enumerate(asked):
            for c, completion in enumerate(group):
                record = {**completion_record(prompt, completion), "greedy": self.greedy and c == 0}
                if verdicts is not None:
                    record["correct"] = verdicts[p][c]
                self.predictions.append({**record, "rewards": {name: term[p][c] for name, term in terms.items()}})

    def on_predict_end(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self._rollout.sampler.rest()
        for scorer in [*self._rules, *([self._scorer] if self._scorer else [])]:
            scorer.close()
        everything = ranks.gather_objects(self.predictions)
        if ranks.rank() == 0 and trainer.datamodule.question is None:
            path, names = Path(trainer.default_root_dir) / "predictions.jsonl", trainer.datamodule.eval_names
            everything.sort(key=lambda record: (names.index(record["source"]), record["row"]))  # as on one rank
            write_records(path, everything)
            log.info("%d completions written to %s", len(everything), path)

    # --- generation ------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Say once how answers are drawn."""
        if self._announced:
            return
        self._announced = True
        parts = ["greedy answers"] if self.greedy else []
        if self.samples:
            parts.append(
                f"{self.samples} samples at temperature {self.temperature:g}, top_p {self.top_p:g}, "
                f"top_k {self.top_k}, min_p {self.min_p:g}"
            )
        log.info("evaluation: %s; at most %d tokens", " and ".join(parts), self.max_completion_length)

    def _generate(
        self, trainer: L.Trainer, pl_module: PolicyModule, batch: PromptBatch
    ) -> tuple[list[list[Completion]], list[list[Completion]]]:
        """Greedy answers ``[P][1 or 0]`` and samples ``[P][n]``, decoded."""
        assert self.max_completion_length is not None
        greedy = Sampling(max_completion_length=self.max_completion_length, temperature=0.0)
        varied = Sampling(
            max_completion_length=self.max_completion_length,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
        )
        engine = self._rollout.sampler.ready(trainer, pl_module)
        prompts, seeds = [p.token_ids for p in batch.prompts], self._rollout.seeds("evaluation", 0, batch)

        def draw(sampling: Sampling, number: int) -> list[list[Completion]]:
            if not number:
                return [[] for _ in prompts]
            drawn = engine.generate(prompts, sampling, group_size=number, seeds=seeds)
            decode(pl_module.tokenizer, drawn)
            return drawn

        return draw(greedy, int(self.greedy)), draw(varied, self.samples)


def whose_answers(trainer: L.Trainer, pl_module: PolicyModule, *, checkpoint: str | None) -> str:
    """Which policy is asked: the one that a run's ``config.yaml`` names is what it began with, not what it trained."""
    policy = pl_module.policy_path
    if checkpoint is not None:
        return f"policy: {policy}, with the weights of {checkpoint}"
    for folder in (Path(trainer.default_root_dir) / name for name in exports(trainer)):
        if folder.is_dir() and folder.resolve() != Path(policy).resolve():
            return f"policy: {policy}; the one that the run in {folder.parent} trained is --model.policy {folder}"
    return f"policy: {policy}"


def _checks_some_batches(trainer: L.Trainer) -> bool:
    """A sanity check on the first few batches: it shows that evaluation works, not how good the policy is."""
    return trainer.sanity_checking and trainer.num_sanity_val_batches != trainer.num_val_batches


def _intervals(summary: dict[str, float]) -> dict[str, tuple[float, float]]:
    """95% intervals of accuracy and pass@1.

    Of the n samples of a problem, pass@1 takes the mean, which varies less than one answer does: its interval, of as
    many trials as problems, is on the safe side.
    """
    problems = summary["problems"]
    shares = {name: summary[name] if problems else 0.0 for name in ("accuracy", "pass@1") if name in summary}
    return {f"{name}_interval": wilson_interval(share * problems, problems) for name, share in shares.items()}
