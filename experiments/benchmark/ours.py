"""A measured run of our trainer: the command line as users call it, with a stopwatch around the parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import yaml

from experiments.benchmark.job import NONE, Job, Recording
from experiments.benchmark.stopwatch import Memory, Stopwatch
from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.engines.base import RolloutEngine
from grpo_lightning.rollout.drawing import GroupDrawer


class Probe(L.Callback):
    """Puts the stopwatch around the parts of a run, and the recorded completions in the place of the sampled ones.

    Args:
        job: file of the job.
        figures: file that the figures are written to.
    """

    def __init__(self, *, job: str, figures: str) -> None:
        self.job, self.figures = Job.read(Path(job)), Path(figures)
        self.recording = Recording(Path(self.job.data))
        self.watch, self.memory = Stopwatch(), Memory()

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        watch, module = self.watch, pl_module
        rollout = next(callback for callback in trainer.callbacks if isinstance(callback, RolloutCallback))
        self._watch_engine(rollout.sampler.engine)
        self._watch_rewards(rollout._collector.drawer)
        module.score = watch.timed("score", module.score)
        module.loss = watch.timed("forward", module.loss)
        module.accumulate = watch.timed("backward", module.accumulate)
        module.take_step = watch.timed("optimizer", module.take_step)
        watch.count_tokens(module.policy.model.base_model)
        watch.restart()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.watch.count("dropped", batch.rollout.metrics["rollout/frac_dropped_sequences"])
        self.watch.count("micro_batches", sum(len(window.micro_batches) for window in batch.rollout.windows))
        self.watch.end_step()

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        result = {"memory": self.memory.result(), "steps": self.watch.steps}
        self.figures.write_text(json.dumps(result), encoding="utf-8")

    def _watch_engine(self, engine: RolloutEngine) -> None:
        start, generate = engine.start, engine.generate

        def started(model: Any) -> None:
            start(model)
            self.memory.start()

        def generated(prompts: list[list[int]], *arguments: Any, **keywords: Any) -> Any:
            if self.job.engine != NONE:
                with self.watch.phase("generate"):
                    drawn = generate(prompts, *arguments, **keywords)
                self.watch.count("generated_tokens", sum(len(c.token_ids) for group in drawn for c in group))
            groups = [self.recording.group(prompt) for prompt in prompts]
            self.watch.count("trained_tokens", sum(len(c.token_ids) for group in groups for c in group))
            return groups

        engine.start, engine.generate = started, generated
        engine.load_weights = self.watch.timed("sync", engine.load_weights)

    def _watch_rewards(self, drawer: GroupDrawer) -> None:
        """Rewards are computed beside the passes: what counts is the time that the trainer waits for them."""
        draw = drawer.draw

        def drawn(*arguments: Any, **keywords: Any) -> Any:
            result = draw(*arguments, **keywords)
            result.scoring.result = self.watch.timed("reward", result.scoring.result)
            return result

        drawer.draw = drawn


def config(job: Job, *, job_file: Path, figures: Path, folder: Path) -> dict[str, Any]:
    """The run in the command line's own words."""
    return {
        "seed_everything": job.seed,
        "model": {
            "class_path": job.module,
            "init_args": {
                "policy": job.model,
                "lr": 0.0,
                "gradient_checkpointing": job.checkpointing,
                "objective": {
                    "class_path": "grpo_lightning.objectives.ClippedObjective",
                    "init_args": {"epsilon": 0.2, "epsilon_high": 0.28, "beta": job.beta},
                },
                **job.options,
            },
        },
        "data": {
            "source": {
                "class_path": "grpo_lightning.data.JsonLines",
                "init_args": {"path": str(Path(job.data) / "prompts.jsonl")},
            },
            "template": {
                "class_path": "grpo_lightning.data.PromptTemplate",
                "init_args": {"chat": False, "layout": "{question}", "answer_format": "none"},
            },
            "prompts_per_step": job.prompts_per_step,
            "max_prompt_length": job.max_prompt_length,
            "shuffle": False,
        },
        "rollout": {
            "rewards": ["experiments.benchmark.reward.token_reward"],
            "engine": _engine(job),
            "group_size": job.group_size,
            "max_completion_length": job.max_completion_length,
            "micro_batch_tokens": job.micro_batch_tokens,
        },
        "samples": {"every_n_rollouts": 0},
        "export": {"folder": None},
        "trainer": {
            "default_root_dir": str(folder),
            "devices": 1,
            "max_steps": 1 + job.steps,
            "precision": job.precision,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "callbacks": [
                {
                    "class_path": "experiments.benchmark.ours.Probe",
                    "init_args": {"job": str(job_file), "figures": str(figures)},
                }
            ],
        },
    }


def _engine(job: Job) -> dict[str, Any]:
    if job.engine == "vllm":
        return {
            "class_path": "grpo_lightning.engines.VLLMEngine",
            "init_args": {"kv_cache_gib": job.kv_cache_gib},
        }
    return {"class_path": "grpo_lightning.engines.TransformersEngine"}


def run(job_file: Path, figures: Path, folder: Path) -> None:
    from grpo_lightning.__main__ import main

    job = Job.read(job_file)
    path = folder / "benchmark.yaml"
    text = yaml.safe_dump(config(job, job_file=job_file, figures=figures, folder=folder / "run"), sort_keys=False)
    path.write_text(text, encoding="utf-8")
    main(["fit", "--config", str(path)])
