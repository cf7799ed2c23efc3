"""Accuracy on held-out problems, in ``validate``, ``test`` and during ``fit``; answers in ``predict``."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import lightning as L
from torchmetrics import MeanMetric, Metric

from grpo_lightning import ranks
from grpo_lightning.callbacks.rollout import RolloutCallback, check_truncation
from grpo_lightning.data.source import PromptSource
from grpo_lightning.engines.base import Sampling
from grpo_lightning.errors import UserError
from grpo_lightning.evaluation import MajorityAtK, PassAtK, wilson_interval
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.rewards.runner import RewardScorer
from grpo_lightning.rollout.collector import decode
from grpo_lightning.types import Completion, Prompt, PromptBatch

log = logging.getLogger(__name__)
BREAKDOWNS = ("level", "subject")


class EvaluationCallback(L.Callback):
    """Generates with its own sampling settings and scores with each source's own correctness rule.

    Greedy answers give ``accuracy``; n samples give unbiased ``pass@k`` and ``maj@k``. Seeds are those of the problem,
    the same at every evaluation; nothing that training draws from is touched.

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
        self._tallies: list[_Tally] = []
        self._rollout: RolloutCallback

    def setup(self, trainer: L.Trainer, pl_module: PolicyModule, stage: str) -> None:
        self._rollout = next(c for c in trainer.callbacks if isinstance(c, RolloutCallback))
        if self.max_completion_length is None:
            self.max_completion_length = self._rollout.sampling.max_completion_length
        self._rollout.allow_length(
            trainer, pl_module, self.max_completion_length, flag="--evaluation.max_completion_length"
        )

    # --- validate and test -----------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self._tallies = [_Tally(source, self.greedy, self.samples) for source in trainer.datamodule.eval_sources]

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: PolicyModule, batch: PromptBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        greedy, samples = self._generate(trainer, pl_module, batch)
        self._tallies[dataloader_idx].add(batch.prompts, greedy, samples)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self._finish(trainer, pl_module, "val")

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_start = on_validation_batch_start

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self._finish(trainer, pl_module, "test")

    def _finish(self, trainer: L.Trainer, pl_module: PolicyModule, stage: str) -> None:
        self._rollout.rest_engine()
        folder, command = Path(trainer.default_root_dir), str(trainer.state.fn.value)
        figures: dict[str, float] = {}
        pooled = [0.0, 0.0]
        for tally in self._tallies:
            summary, records = tally.result(), ranks.gather_objects(tally.records)
            name = tally.source.name
            figures |= {f"{stage}/{name}/{key}": value for key, value in summary.items()}
            pooled = [pooled[0] + summary["problems"] * summary["accuracy"], pooled[1] + summary["problems"]]
            if ranks.rank() == 0:
                line = {"command": command, "policy": pl_module.policy_path, "checkpoint": trainer.ckpt_path}
                line |= {"stage": stage, "step": trainer.global_step, "source": name, **summary}
                line["accuracy_interval"] = wilson_interval(
                    summary["accuracy"] * summary["problems"], summary["problems"]
                )
                _append(folder / "evaluations.jsonl", [line])
                # `validate` in the folder of a run must not overwrite what the run wrote at step 0.
                when = f"_step{trainer.global_step:06d}" if command == "fit" else ""
                _append(folder / "samples" / f"{stage}_{name}{when}.jsonl", records, fresh=True)
                log.info("%s %s: accuracy %.1f%% of %d", stage, name, 100 * summary["accuracy"], summary["problems"])
        figures[f"{stage}/accuracy"] = pooled[0] / max(pooled[1], 1)
        pl_module.log_figures(figures, bar=(f"{stage}/accuracy",))

    # --- predict ---------------------------------------------------------------------------------------------------

    def on_predict_start(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self.predictions = []

    def on_predict_batch_start(
        self, trainer: L.Trainer, pl_module: PolicyModule, batch: PromptBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        greedy, samples = self._generate(trainer, pl_module, batch)
        groups = [[*g, *s] for g, s in zip(greedy, samples, strict=True)]
        scored = self._rollout.rewards and all("answer" in prompt.columns for prompt in batch.prompts)
        terms = RewardScorer(self._rollout.rewards, None).score(batch.prompts, groups).terms if scored else {}
        for p, (prompt, group) in enumerate(zip(batch.prompts, groups, strict=True)):
            for c, completion in enumerate(group):
                record = _record(prompt, completion)
                record["greedy"] = self.greedy and c == 0
                record["rewards"] = {name: term[p][c] for name, term in terms.items()}
                self.predictions.append(record)

    def on_predict_end(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        self._rollout.rest_engine()
        everything = ranks.gather_objects(self.predictions)
        if ranks.rank() == 0 and trainer.datamodule.question is None:
            path = Path(trainer.default_root_dir) / "predictions.jsonl"
            _append(path, everything, fresh=True)
            log.info("%d completions written to %s", len(everything), path)

    # --- generation ------------------------------------------------------------------------------------------------

    def _generate(
        self, trainer: L.Trainer, pl_module: PolicyModule, batch: PromptBatch
    ) -> tuple[list[list[Completion]], list[list[Completion]]]:
        """Greedy answers ``[P][1 or 0]`` and samples ``[P][n]``, decoded."""
        engine = self._rollout.ready_engine(trainer, pl_module)
        prompts, seeds = [p.token_ids for p in batch.prompts], self._rollout.seeds("evaluation", 0, batch)
        assert self.max_completion_length is not None
        groups: list[list[list[Completion]]] = []
        for number, sampling in (
            (int(self.greedy), Sampling(max_completion_length=self.max_completion_length, temperature=0.0)),
            (
                self.samples,
                Sampling(
                    max_completion_length=self.max_completion_length,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    top_k=self.top_k,
                    min_p=self.min_p,
                ),
            ),
        ):
            drawn = (
                engine.generate(prompts, sampling, group_size=number, seeds=seeds) if number else [[] for _ in prompts]
            )
            decode(pl_module.tokenizer, drawn)
            groups.append(drawn)
        return groups[0], groups[1]


class _Tally:
    """Verdicts on one source's problems."""

    def __init__(self, source: PromptSource, greedy: bool, samples: int) -> None:
        self.source = source
        self.records: list[dict[str, Any]] = []
        self.metrics: dict[str, Metric] = {"mean_length": MeanMetric(), "clipped_ratio": MeanMetric()}
        if greedy:
            self.metrics["accuracy"] = MeanMetric()
        for k in [1 << i for i in range(samples.bit_length())] if samples else []:
            self.metrics[f"pass@{k}"] = PassAtK(k)
        if samples > 1:
            self.metrics[f"maj@{samples}"] = MajorityAtK()
        self.problems = 0
        self.parts: dict[str, list[bool]] = {}

    def add(self, prompts: list[Prompt], greedy: list[list[Completion]], samples: list[list[Completion]]) -> None:
        for prompt, answers, drawn in zip(prompts, greedy, samples, strict=True):
            if not prompt.valid:
                continue
            verdicts = self._verdicts(prompt, [*answers, *drawn])
            if any(v is None for v in verdicts):  # the gold cannot be read: no problem to be right or wrong about
                continue
            right = [bool(v) for v in verdicts]
            self.problems += 1
            self._count(prompt, right[: len(answers)], right[len(answers) :], answers, drawn)
            for completion, verdict in zip([*answers, *drawn], right, strict=True):
                self.records.append({**_record(prompt, completion), "correct": verdict})
            for i, record in enumerate(self.records[-len(right) :]):
                record["greedy"] = i < len(answers)

    def _verdicts(self, prompt: Prompt, completions: list[Completion]) -> list[float | None]:
        scorer = RewardScorer([self.source.correctness], None)
        (scores,) = scorer.score([prompt], [completions]).terms.values()
        return [None if score != score else score for score in scores[0]]

    def _count(
        self,
        prompt: Prompt,
        greedy_right: list[bool],
        right: list[bool],
        answers: list[Completion],
        drawn: list[Completion],
    ) -> None:
        for completion in answers or drawn:
            self.metrics["mean_length"].update(len(completion.token_ids))
            self.metrics["clipped_ratio"].update(float(not completion.finished))
        if greedy_right:
            self.metrics["accuracy"].update(float(greedy_right[0]))
        for name, metric in self.metrics.items():
            if name.startswith("pass@"):
                metric.update(right)
            elif name.startswith("maj@"):
                metric.update([self.source.extract_answer(prompt.prefill + c.text) for c in drawn], right)
        for column in BREAKDOWNS:
            if column in prompt.columns:
                verdict = greedy_right[0] if greedy_right else right[0]
                self.parts.setdefault(f"{column}={prompt.columns[column]}", []).append(verdict)

    def result(self) -> dict[str, float]:
        """Figures over all ranks; ``accuracy`` is greedy, or pass@1 where nothing was greedy."""
        figures = {name: float(metric.compute()) for name, metric in self.metrics.items()}
        figures.setdefault("accuracy", figures.get("pass@1", 0.0))
        figures["problems"] = float(len(ranks.gather_objects([1] * self.problems)))
        verdicts: dict[str, list[bool]] = {}
        for part, rights in ranks.gather_objects(list(self.parts.items())):
            verdicts.setdefault(part, []).extend(rights)
        return figures | {f"{part}/accuracy": sum(v) / len(v) for part, v in sorted(verdicts.items())}


def _record(prompt: Prompt, completion: Completion) -> dict[str, Any]:
    return {
        "source": prompt.source,
        "row": prompt.row,
        "prompt": prompt.text,
        "answer": prompt.columns.get("answer"),
        "completion": prompt.prefill + completion.text,
        "tokens": len(completion.token_ids),
        "finished": completion.finished,
    }


def _append(path: Path, records: list[dict[str, Any]], *, fresh: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w" if fresh else "a", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
