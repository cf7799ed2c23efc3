"""Lightning callbacks: rollouts, evaluation, samples, export, the run folder; and those to choose from, named here."""

from grpo_lightning.callbacks.adaptive import AdaptiveEntropy, AdaptiveKL
from grpo_lightning.callbacks.length_schedule import CompletionLengthSchedule
from grpo_lightning.callbacks.reference_sync import ReferenceSync

__all__ = ["AdaptiveEntropy", "AdaptiveKL", "CompletionLengthSchedule", "ReferenceSync"]
