"""A measured run of TRL's GRPOTrainer, with the same stopwatch around the same parts.

It is not held back: gradient checkpointing is off unless asked for (its default, on, computes every activation twice),
nothing is saved or reported, no progress bar is drawn, and one generation serves one optimizer step. Log-probabilities
are always its own chunked head's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import trl.trainer.utils
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from experiments.benchmark.job import NONE, Job, Recording
from experiments.benchmark.reward import token_reward
from experiments.benchmark.stopwatch import Memory, Stopwatch


class MeasuredTrainer(GRPOTrainer):
    """TRL's trainer; what it sampled is counted, and then replaced by the recorded completions."""

    watch: Stopwatch
    recording: Recording
    samples: bool

    def begin(self, job: Job) -> None:
        """Put the stopwatch around the parts."""
        self.watch, self.recording = Stopwatch(), Recording(Path(job.data))
        self.samples = job.engine != NONE
        watch = self.watch
        self._calculate_rewards = watch.timed("reward", self._calculate_rewards)
        self.compute_loss = watch.timed("forward", self.compute_loss)
        self.accelerator.backward = watch.timed("backward", self.accelerator.backward)
        self._clip_grad_norm = watch.timed("optimizer", self._clip_grad_norm)
        watch.count_tokens(self.model.base_model)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *arguments: Any, **keywords: Any) -> Any:
        if self.samples:
            with self.watch.phase("generate"):
                drawn, _ = super()._generate_single_turn(prompt_ids, *arguments, **keywords)
            self.watch.count("generated_tokens", sum(map(len, drawn)))
        recorded = [self.recording.next(prompt) for prompt in prompt_ids]
        self.watch.count("trained_tokens", sum(map(len, recorded)))
        return recorded, None

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        if torch.is_grad_enabled():  # inside the forward
            return super()._get_per_token_logps_and_entropies(*arguments, **keywords)
        with self.watch.phase("score"):
            return super()._get_per_token_logps_and_entropies(*arguments, **keywords)


class Probe(TrainerCallback):
    """Closes steps, and times the optimizer, which no method of the trainer wraps."""

    def __init__(self, trainer: MeasuredTrainer, memory: Memory) -> None:
        self.trainer, self.memory = trainer, memory
        self._optimizer: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.memory.start()
        self.trainer.watch.restart()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer = self.trainer.watch.phase("optimizer")
        self._optimizer.__enter__()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer.__exit__(None, None, None)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.watch.count("micro_batches", self.trainer.args.gradient_accumulation_steps)
        self.trainer.watch.end_step()


def settings(job: Job, folder: Path) -> GRPOConfig:
    micro_batches, rest = divmod(job.sequences, job.rows)
    if rest:
        raise ValueError(f"{job.sequences} sequences do not divide into micro-batches of {job.rows}")
    return GRPOConfig(
        output_dir=str(folder / "run"),
        per_device_train_batch_size=job.rows,
        gradient_accumulation_steps=micro_batches,
        steps_per_generation=micro_batches,
        num_generations=job.group_size,
        max_completion_length=job.max_completion_length,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=0.0,
        lr_scheduler_type="constant",
        beta=job.beta,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        max_grad_norm=1.0,
        max_steps=1 + job.steps,
        bf16=job.precision == "bf16-mixed",
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=job.checkpointing,
        shuffle_dataset=False,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        seed=job.seed,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def run(job_file: Path, figures: Path, folder: Path) -> None:
    job, memory = Job.read(job_file), Memory()
    if job.completion_head:
        # What TRL asks before it picks the positions that its head goes over; its kernels ask by a name of their own.
        trl.trainer.utils._use_triton = lambda _: True
    lines = (Path(job.data) / "prompts.jsonl").read_text("utf-8").splitlines()
    prompts = Dataset.from_list([{"prompt": json.loads(line)["question"]} for line in lines])
    trainer = MeasuredTrainer(
        model=job.model, reward_funcs=[token_reward], args=settings(job, folder), train_dataset=prompts
    )
    trainer.begin(job)
    trainer.add_callback(Probe(trainer, memory))
    trainer.train()
    result = {"memory": memory.result(), "steps": trainer.watch.steps}
    figures.write_text(json.dumps(result), encoding="utf-8")
